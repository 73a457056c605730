"""Runs that were removed, and cleaning up: a removed run lies beside the others until it is cleaned away for good."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.core import lease as leases
from assay.core.errors import InputError
from assay.store.blobs import FileBlobs
from assay.store.index import delete_index
from assay.store.known import forget, lost_roots
from assay.store.layout import Project, RunFolder, refusal, run_folders, scan_runs
from assay.store.reach import named_digests, reachable

TRASH = ".trash"
_YOUNG_S = 3600.0
# Of the snapshots: it says that files are kept whose blobs may be gone now.
_STAT_CACHE = "stat.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was cleaned away, or would be. `code_kept` says why code that seems unused was left alone."""

    runs: tuple[str, ...] = ()
    projects: tuple[Path, ...] = ()
    code_files: int = 0
    size_bytes: int = 0
    code_kept: str = ""


def trash_dir(project: Project) -> Path:
    return project.runs_dir / TRASH


def remove(folder: RunFolder) -> Path:
    """Take a run out of the lists; its files stay until `clean`. InputError while it is being written."""
    lease = leases.read(folder.path)
    if lease is not None and leases.liveness(lease) != "dead":
        who = leases.describe(lease)
        raise InputError(f"The run {folder.id} is being written by {who}.", where=str(folder.path), fix="stop it first")
    place = folder.path.parent / TRASH / folder.path.name
    try:
        place.parent.mkdir(exist_ok=True)
        os.rename(folder.path, place)
    except OSError as error:
        raise refusal(error, folder.path, "The run cannot be removed") from error
    return place


def removed(project: Project) -> list[RunFolder]:
    """The runs that were removed and not yet cleaned away, the oldest first."""
    entries = sorted(scan_runs(trash_dir(project)), key=lambda each: each.name)
    return [RunFolder(Path(entry.path)) for entry in entries]


def bring_back(folder: RunFolder) -> Path:
    """Put a removed run back where it was."""
    place = folder.path.parent.parent / folder.path.name
    try:
        os.rename(folder.path, place)
    except OSError as error:
        raise refusal(error, place, "The run cannot be brought back") from error
    return place


def clean(project: Project | None, *, code: bool = False, dry_run: bool = False) -> Cleaned:
    """Delete removed runs, and forget projects that are gone; with `code` also the code that no run here needs.

    Runs that lie elsewhere (in another `runs_dir`, or copied away) are not seen: their code counts as unused.
    """
    lost = lost_roots()
    if not dry_run and lost:
        for root in lost:
            delete_index(Project(root))
        with contextlib.suppress(OSError):
            forget(lost)
    if project is None:
        return Cleaned(projects=tuple(lost))
    runs = removed(project)
    size = sum(file.stat().st_size for run in runs for file in _files(run.path))
    if not dry_run:
        for run in runs:
            _delete(run.path)
    unused, why = _unused_code(project, [] if dry_run else removed(project)) if code else ([], "")
    size += sum(path.stat().st_size for path in unused)
    if not dry_run and unused:
        (project.code_dir / _STAT_CACHE).unlink(missing_ok=True)
        for path in unused:
            path.unlink(missing_ok=True)
    return Cleaned(
        runs=tuple(run.path.name for run in runs),
        projects=tuple(lost),
        code_files=len(unused),
        size_bytes=size,
        code_kept=why,
    )


def _unused_code(project: Project, left: list[RunFolder]) -> tuple[list[Path], str]:
    """Files of the code store that no run needs. Young ones may belong to a run that begins at this moment."""
    blobs = FileBlobs(project.code_dir)
    needed: set[str] = set()
    for run in [*run_folders(project), *left]:
        if not run.run_json.exists():
            return [], f"{run.path.name} has no run.json, so nobody knows which code it needs"
        try:
            needed |= named_digests(run)
        except OSError as error:
            return [], f"{run.path.name} cannot be read ({error.strerror})"
    kept = reachable(needed, blobs)
    paths = [blobs.path(digest) for digest in blobs.digests() if digest not in kept]
    return [path for path in paths if time.time() - path.stat().st_mtime > _YOUNG_S], ""


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise refusal(error, folder, "The run cannot be deleted") from error


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
