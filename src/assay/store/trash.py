"""Removal and cleaning of runs: a removed run stays beside the others until it is cleaned."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.core.directory import open_directory
from assay.core.errors import InputError
from assay.core.ids import id_of_folder
from assay.formats import lease as leases
from assay.store.code_trees import code_blobs
from assay.store.known_projects import forget, lost_roots
from assay.store.layout import Project, RunFolder, no_folder, refusal, run_folders, run_in
from assay.store.referenced_blobs import named_digests, reachable
from assay.store.refresh_index import delete_index

TRASH = ".trash"
_YOUNG_S = 3600.0
# Of the snapshots: it says that files are kept whose blobs may be gone now.
_STAT_CACHE = "stat.json"
_NO_LINK = "Look at it, and put a folder in its place, or nothing."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Result of a cleaning, done or planned. `code_kept` says why unused code was left alone."""

    runs: tuple[str, ...] = ()
    projects: tuple[Path, ...] = ()
    code_files: int = 0
    size_bytes: int = 0
    code_kept: str = ""


def trash_dir(project: Project) -> Path:
    return project.runs_dir / TRASH


def remove_run(folder: RunFolder) -> Path:
    """Take a run out of the lists; its files stay until `clean`. InputError while it is written.

    Of a link in the place of a run's folder the link goes, and what it leads to stays as it is.
    """
    lease = leases.read(folder.path) if not no_folder(folder) else None
    if (
        lease is not None
        and leases.liveness(lease, written_ns=leases.written_ns(folder.path)) == "alive"
    ):
        who = leases.describe(lease)
        raise InputError(
            f"The run {folder.id} is being written by {who}.",
            where=str(folder.path),
            fix="stop it first",
        )
    try:
        with (
            open_directory(folder.path.parent, follow=True) as runs,
            runs.folder(TRASH, create=True) as trash,
        ):
            runs.move(folder.path.name, trash, folder.path.name)
    except OSError as error:
        raise refusal(error, folder.path, "The run cannot be removed") from error
    return folder.path.parent / TRASH / folder.path.name


def list_removed(project: Project) -> list[RunFolder]:
    """Return the removed, not yet cleaned runs, the oldest first; InputError for a linked trash."""
    try:
        with open_directory(project.runs_dir, follow=True) as runs, runs.folder(TRASH) as trash:
            names = sorted(
                entry.name for entry in trash.entries() if id_of_folder(entry.name) is not None
            )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(
            error, trash_dir(project), "Removed runs cannot be looked at", fix=_NO_LINK
        ) from error
    return [RunFolder(trash_dir(project) / name) for name in names]


def bring_back(folder: RunFolder) -> Path:
    """Put a removed run back where it was."""
    place = folder.path.parent.parent / folder.path.name
    try:
        with open_directory(place.parent, follow=True) as runs, runs.folder(TRASH) as trash:
            trash.move(folder.path.name, runs, place.name)
    except OSError as error:
        raise refusal(error, place, "The run cannot be brought back") from error
    return place


def clean(project: Project | None, *, code: bool = False, dry_run: bool = False) -> Cleaned:
    """Delete removed runs and forget lost projects; with `code` also code that no run needs.

    Runs that lie elsewhere (in another `runs_dir`, or copied away) are not seen: their code counts
    as unused. Nothing outside of the trash and of the store of code is deleted, whatever links lie
    in them.
    """
    lost = lost_roots()
    if not dry_run and lost:
        for root in lost:
            delete_index(Project(root))
        with contextlib.suppress(OSError):
            forget(lost)
    if project is None:
        return Cleaned(projects=tuple(lost))
    runs = list_removed(project)
    size = sum(status.st_size for run in runs for status in _files(run))
    if not dry_run:
        _empty_trash(project)
    unused, why = _unused_code(project) if code else ([], "")
    if unused:
        size += _discard_code(project, unused, dry_run=dry_run)
    return Cleaned(
        runs=tuple(run.path.name for run in runs),
        projects=tuple(lost),
        code_files=len(unused),
        size_bytes=size,
        code_kept=why,
    )


def _empty_trash(project: Project) -> None:
    try:
        with open_directory(project.runs_dir, follow=True) as runs, runs.folder(TRASH) as trash:
            for name in sorted(entry.name for entry in trash.entries()):
                trash.remove(name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise refusal(
            error, trash_dir(project), "The runs cannot be deleted", fix=_NO_LINK
        ) from error


def _files(run: RunFolder) -> Iterator[os.stat_result]:
    if not no_folder(run):
        with open_directory(run.path) as folder:
            yield from (status for _, status in folder.files())


def _discard_code(project: Project, digests: list[str], *, dry_run: bool) -> int:
    """Delete files of the code store, or only say how many bytes they have."""
    blobs = code_blobs(project)
    if dry_run:
        return sum(os.lstat(blobs.path(digest)).st_size for digest in digests)
    try:
        with open_directory(project.code_dir) as folder, contextlib.suppress(FileNotFoundError):
            folder.remove(_STAT_CACHE)
        return blobs.discard(digests)
    except OSError as error:
        raise refusal(
            error, project.code_dir, "The code cannot be deleted", fix=_NO_LINK
        ) from error


def _unused_code(project: Project) -> tuple[list[str], str]:
    """Return unneeded code; young code may belong to a run that begins at this moment."""
    blobs = code_blobs(project)
    needed: set[str] = set()
    for run in run_folders(project):
        if why := run_in(run)[1]:
            return [], f"{run.path.name} cannot be read, so nobody knows which code it needs: {why}"
        try:
            needed |= named_digests(run)
        except OSError as error:
            return [], f"{run.path.name} cannot be read ({error.strerror})"
    try:
        kept = reachable(needed, blobs)
        unused = [digest for digest in blobs.digests() if digest not in kept]
        return [
            each for each in unused if time.time() - os.lstat(blobs.path(each)).st_mtime > _YOUNG_S
        ], ""
    except OSError as error:
        return [], f"{project.code_dir} cannot be read: {error.strerror}"
