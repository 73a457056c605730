"""Jobs frozen at submission: their config, and the code of their project as it was."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.compose.launch import Launch, ProcessTask, task_arguments
from assay.compose.run_record import code_outside, project_around, secrets_of
from assay.config.loading import Config
from assay.config.standard_keys import sections_of
from assay.core.directory import PRIVATE, make_directory
from assay.core.job import JobSpec
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import parse_json, to_plain
from assay.formats.run_file import Code
from assay.query.sweep_summary import spell_assigned
from assay.record.snapshot import STAT_CACHE, snapshot
from assay.store.code_trees import code_blobs, link_rest, path_in_copy, read_tree, write_tree
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
    needed = _trees_in_use(project)
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


def _trees_in_use(project: Project) -> set[str]:
    names = set(map(tree_name, _tasks_of_schedulers(project)))
    if (queue_dir() / FILE_NAME).exists():
        with JobJournal() as journal:
            names |= set(map(tree_name, journal.codes_in_use(str(project.root))))
    return names


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


@dataclass(frozen=True, slots=True)
class FrozenCode:
    """Files of a snapshot in `tree`; data of the project `root` is linked beside them."""

    root: Path
    tree: Path
    code: Code

    def move(self, path: Path) -> Path:
        """Return the frozen file or folder of a path in the project; others stay as they are."""
        moved = path_in_copy(path.resolve(), self.root, self.tree)
        return moved if moved.exists() else path

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return `environment` with the folders of modules in the frozen tree."""
        folders = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        inside = [
            self.move(Path(part)) if Path(part).is_relative_to(self.root) else Path(part)
            for part in folders
        ]
        # Modules of the working directory would come before the frozen ones.
        own = {"PYTHONPATH": os.pathsep.join(map(str, inside))} if inside else {}
        return {**environment, "PYTHONSAFEPATH": "1", **own}


def freeze_code(config: Config) -> FrozenCode:
    """Keep the code of a config's project, and write it to a folder of its own: once a snapshot.

    A code that is the same again uses the folder that is there.
    """
    project = project_around(config.path)
    blobs = code_blobs(project)
    code = snapshot(
        project.root,
        blobs,
        folders=code_outside(config.user_dirs, project),
        skip=project.runs_dir,
        cache=project.code_dir / STAT_CACHE,
        secrets=secrets_of(config),
    )
    tree = trees_dir(project) / tree_name(code.snapshot)
    if not tree.exists():
        _write_tree(project, code, tree)
    os.utime(tree)  # the job that needs it is in line only a moment later
    return FrozenCode(project.root, tree, code)


def _write_tree(project: Project, code: Code, tree: Path) -> None:
    """Write a tree whole or not at all, though several submit at once."""
    make_directory(tree.parent, PRIVATE)
    blobs = code_blobs(project)
    new = tree.with_name(f".{tree.name}-{os.urandom(4).hex()}")
    new.mkdir()
    try:
        write_tree(read_tree(blobs, code.snapshot), blobs, new)
        link_rest(project.root, new, skipped=project.runs_dir)
        with contextlib.suppress(OSError):  # somebody was quicker
            os.rename(new, tree)
    finally:
        shutil.rmtree(new, ignore_errors=True)


_LEFT_OUT = ("ASSAY_JOB", "LS_COLORS", "_")
_TASKS = "tasks"


def training_spec(
    config: Config,
    launch: Launch,
    frozen: FrozenCode,
    queue: Path,
    *,
    then_test: bool = False,
    parent: str = "",
    **placed: Any,
) -> JobSpec:
    """Write a config down for a job, with the code that it will run; return the job to submit.

    `parent` is the run whose config this is. `placed` are fields of JobSpec: device, priority,
    after, limits.
    """
    moved = replace(config, user_dirs=tuple(frozen.move(path) for path in config.user_dirs))
    launch = replace(launch, code=to_plain(frozen.code))
    task = ProcessTask.of("job", moved, launch, then_test=then_test, parent=parent)
    tasks = queue / _TASKS
    make_directory(tasks, PRIVATE)
    path = tasks / f"{os.urandom(8).hex()}.json"
    replace(task, tells="advice").write(path, durable=True)
    return JobSpec(
        command=(sys.executable, *task_arguments(path)),
        cwd=os.getcwd(),
        environment=frozen.variables(_variables_to_keep()),
        title=title_of(config),
        config=str(config.path or ""),
        project=str(frozen.root),
        code=frozen.code.snapshot,
        **placed,
    )


def title_of(config: Config) -> str:
    """Return a short name of a config: its tag or file, its variant, and the point of its sweep."""
    file = config.path.name if config.path is not None else ""
    values = spell_assigned(config.root, config.assigned)
    assigned = "  ".join(f"{key}={value}" for key, value in values.items())
    tag = sections_of(config.root).tag
    return "  ".join(filter(None, [tag or file, config.variant, assigned]))


def _variables_to_keep() -> dict[str, str]:
    """Return the variables of the submitting shell, without those of a job it may itself be."""
    return {
        name: value
        for name, value in os.environ.items()
        if not any(name == left or name.startswith(f"{left}_") for left in _LEFT_OUT)
    } | {"PYTHONUNBUFFERED": "1"}
