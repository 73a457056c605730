"""The code of a run as files again, in a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from assay.core.errors import InputError, RecordError
from assay.core.formatting import size
from assay.core.ports import Blobs
from assay.store.code_trees import CodeFile
from assay.store.layout import refusal
from assay.store.safe_path import safe_path

MAX_BYTES = 8 << 30
OUTSIDE = "outside"
"""The folder for code that lay outside of the project."""

_NEVER_LINKED = frozenset({".assay", ".git", "__pycache__"})
_ELSEWHERE = "Name another folder with --to."


def place_of(name: str, to: Path) -> Path:
    """Return the path for a file of a code tree; files outside of the project go to `outside/`."""
    return (
        safe_path(to / OUTSIDE, name.lstrip("/")) if name.startswith("/") else safe_path(to, name)
    )


def restored(path: Path, root: Path, to: Path) -> Path:
    """Return the place below `to` of a path in the project `root`, or outside of it."""
    for home in (root, root.resolve()):
        if path.is_relative_to(home):
            return to / path.relative_to(home)
    return place_of(path.as_posix(), to)


def write_tree(files: Mapping[str, CodeFile], blobs: Blobs, to: Path) -> list[Path]:
    """Write all files of a tree below `to`; RecordError when one is missing or too large."""
    written: list[Path] = []
    total = 0
    for name, file in files.items():
        path = place_of(name, to)
        try:
            data = blobs.get(file.digest)
        except KeyError:
            raise RecordError(
                f"The file {name} of this run's code is not here.", where=file.digest
            ) from None
        total += len(data)
        if total > MAX_BYTES:
            raise RecordError(
                f"The code of this run is larger than {size(MAX_BYTES)}: it is not written."
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if file.mode & 0o100 else 0o644)
        except OSError as error:
            raise refusal(error, path, "The file cannot be restored", fix=_ELSEWHERE) from error
        written.append(path)
    return written


def link_rest(source: Path, to: Path, *, skipped: Path) -> None:
    """Link everything below `source` that was not kept with the code: data, above all."""
    for path in _entries(source):
        place = to / path.name
        if path.name in _NEVER_LINKED or path == skipped:
            continue
        is_above = skipped.is_relative_to(path)
        if path.is_dir() and not path.is_symlink() and (place.is_dir() or is_above):
            place.mkdir(exist_ok=True)
            link_rest(path, place, skipped=skipped)
        # A module that is not in the snapshot is none of that code.
        elif path.suffix != ".py" and not os.path.lexists(place):
            place.symlink_to(path)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return


def make_room(folder: Path, *, force: bool) -> Path | None:
    """Make `folder` exist and be empty; `force` moves old content aside and returns where."""
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            folder.mkdir(parents=True, exist_ok=True)
            return None
        if not force:
            raise InputError(
                "There is something in this folder.",
                where=str(folder),
                fix="--to another one, or --force moves it away",
            )
        numbers = (folder.with_name(f"{folder.name}.old-{i}") for i in range(1, 10_000))
        aside = next(path for path in numbers if not os.path.lexists(path))
        os.rename(folder, aside)
        folder.mkdir(parents=True)
    except OSError as error:
        raise refusal(error, folder, "The folder cannot be made", fix=_ELSEWHERE) from error
    return aside
