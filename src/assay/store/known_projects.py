"""Projects of this user: one path a line, in a text file that may be edited or deleted.

Nobody else may read it: paths tell what somebody works on.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from platformdirs import user_data_path

from assay.core.directory import PRIVATE, file_mode, make_directory, open_directory
from assay.core.errors import InputError
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import write_atomic
from assay.store.layout import Project, find_project

FILE_NAME = "projects.txt"
_MAX_BYTES = 16 << 20


def known_file() -> Path:
    """The list, in the user's data folder."""
    return user_data_path("assay", appauthor=False) / FILE_NAME


def remember(root: Path, *, file: Path | None = None) -> None:
    """Add a project, unless it is there already; those that were deleted leave the list.

    OSError when the list cannot be written.
    """
    path = file or known_file()
    line = str(root.absolute())
    lines = _lines(path)
    if "\n" in line:
        return
    is_new = line not in lines
    if is_new and (deleted := [Path(each) for each in lines if each and _is_deleted(Path(each))]):
        forget(deleted, file=path)
    make_directory(path.parent, PRIVATE)
    with open_directory(path.parent, follow=True) as folder:
        try:
            descriptor = folder.create(path.name, file_mode(PRIVATE))
        except FileExistsError:
            descriptor = folder.open(path.name, os.O_WRONLY | os.O_APPEND)
            _make_private(descriptor)
    with open(descriptor, "a", encoding="utf-8", errors="surrogateescape") as out:
        if is_new:
            out.write(line + "\n")


def known_projects(*, file: Path | None = None) -> list[Path]:
    """The projects that still exist, each once, in the order in which they were first used."""
    lines = dict.fromkeys(_lines(file or known_file()))
    return [Path(line) for line in lines if line and (Path(line) / ".assay").is_dir()]


def lost_roots(*, file: Path | None = None) -> list[Path]:
    """The projects of the list whose folder is gone, or is no project any more."""
    lines = dict.fromkeys(_lines(file or known_file()))
    return [Path(line) for line in lines if line and not (Path(line) / ".assay").is_dir()]


def forget(roots: Iterable[Path], *, file: Path | None = None) -> None:
    """Take projects off the list. OSError when it cannot be written."""
    path = file or known_file()
    gone = {str(root) for root in roots}
    kept = [line for line in dict.fromkeys(_lines(path)) if line and line not in gone]
    text = "".join(f"{line}\n" for line in kept)
    write_atomic(
        path, text.encode("utf-8", "surrogateescape"), durable=False, mode=file_mode(PRIVATE)
    )


def _make_private(descriptor: int) -> None:
    """Take the permissions of others from an older file."""
    with contextlib.suppress(OSError, AttributeError):  # of somebody else; Windows
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, file_mode(PRIVATE))


def _is_deleted(root: Path) -> bool:
    """Return whether a project is gone for good: a disk that is away leaves an empty folder."""
    if os.path.lexists(root):
        return False
    there = next((folder for folder in root.parents if folder.is_dir()), None)
    try:
        return there is not None and any(there.iterdir())
    except OSError:
        return False


def _lines(path: Path) -> list[str]:
    try:
        return (
            read_bytes(path, _MAX_BYTES, follow=True).decode("utf-8", "surrogateescape").split("\n")
        )
    except OSError:
        return []


def project_here(start: Path | None = None) -> Project:
    """Return the project around `start` (the working directory); InputError for none."""
    folder = start or Path.cwd()
    project = find_project(folder)
    if project is None:
        raise InputError(
            "There is no project here: no folder `.assay` in this folder or above it.",
            where=str(folder),
            fix=suggest_below(folder)
            or "`assay init` makes this folder one; so does the first `assay run`",
        )
    return project


def suggest_below(folder: Path) -> str:
    """Return a fix that names a project directly below a folder, "" where none lies there."""
    try:
        names = sorted(each.name for each in folder.iterdir() if (each / ".assay").is_dir())
    except OSError:
        return ""
    return f"cd {shlex.quote(names[0])}: it is a project" if names else ""


def projects_here(start: Path | None = None) -> list[Project]:
    """The project around `start` (the working directory), alone; none when there is none."""
    project = find_project(start or Path.cwd())
    return [project] if project is not None else []


def all_projects(start: Path | None = None) -> list[Project]:
    """The project around `start`, if there is one, then all others that this user has."""
    roots = dict.fromkeys([*(home.root for home in projects_here(start)), *known_projects()])
    return [Project(root) for root in roots]
