"""Frozen code that no job needs any more, and its deletion."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from assay.core.json_codec import parse_json
from assay.core.regular_file import read_bytes
from assay.store.job_journal import FILE_NAME, JobJournal, queue_dir
from assay.store.layout import Project

LEAST_AGE_S = 3600.0
"""Age at which code may go: what was frozen a moment ago is in no queue yet."""
_SCHEDULERS = ("slurm", "ray", "k8s")
_MOST_AGE_S = 30 * 86_400.0
"""Age at which the job of a scheduler has ended, though it left no result."""
_MAX_TASK_BYTES = 16 << 20


def tree_name(snapshot: str) -> str:
    return snapshot[:16]


def trees_dir(project: Project) -> Path:
    """Return the folder with the frozen code of jobs of one queue of one machine.

    Other machines that share the project have queues, and folders, of their own.
    """
    queue = hashlib.sha256(os.fsencode(queue_dir())).hexdigest()[:8]
    return project.assay_dir / "jobs" / f"{platform.node() or 'localhost'}-{queue}"


def delete_ended_trees(
    project: Project, *, least_age_s: float = LEAST_AGE_S, dry_run: bool = False
) -> list[Path]:
    """Delete frozen code that no waiting or running job needs; return the folders.

    `dry_run` only returns them. Jobs of Slurm, Ray and Kubernetes need theirs until they leave a
    result, for 30 days at most.
    """
    folder = trees_dir(project)
    if folder.is_symlink() or not folder.is_dir():
        return []
    needed = _needed(project)
    ended = [
        Path(entry.path)
        for entry in os.scandir(folder)
        if entry.is_dir(follow_symlinks=False)
        and entry.name not in needed
        and _age_s(Path(entry.path)) > least_age_s
    ]
    for tree in () if dry_run else ended:
        gone = tree.with_name(f".{tree.name}-{os.urandom(4).hex()}")
        with contextlib.suppress(FileNotFoundError):  # somebody was quicker
            os.rename(tree, gone)  # half a tree must not look like one
            shutil.rmtree(gone)
    return sorted(ended)


def _needed(project: Project) -> set[str]:
    found = set(map(tree_name, _tasks_of_schedulers(project)))
    if (queue_dir() / FILE_NAME).exists():
        with JobJournal() as journal:
            found |= set(map(tree_name, journal.codes_in_use(str(project.root))))
    return found


def _tasks_of_schedulers(project: Project) -> Iterator[str]:
    """Yield the snapshots of tasks that have left no result."""
    for name in _SCHEDULERS:
        folder = project.assay_dir / name
        for task in folder.glob("tasks/*.json"):
            has_ended = any((folder / "results" / task.stem).glob("result-*.json"))
            if not has_ended and _age_s(task) < _MOST_AGE_S:
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    written = parse_json(read_bytes(task, _MAX_TASK_BYTES))
                    yield str(written["launch"]["code"]["snapshot"])


def _age_s(path: Path) -> float:
    """Return seconds since a change, negative where the clock has been set back."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
