"""Text files of a run, read in parts: its log, its output, and that of other ranks."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import RecordError
from assay.core.regular_file import read_bytes, read_part
from assay.store.layout import RunFolder

_RANK = re.compile(r"(\d{1,6})\.txt")


@dataclass(frozen=True, slots=True)
class TextFile:
    """One text by the name that it is asked for: "log", "output", "rank-1", ..."""

    name: str
    path: Path
    size_bytes: int


def text_files(folder: RunFolder) -> list[TextFile]:
    """Return the texts that are there; what is no regular file is none."""
    named = [("log", folder.log), ("output", folder.output)]
    numbers = [(_RANK.fullmatch(path.name), path) for path in _list_folder(folder.ranks)]
    ranks = sorted((int(number[1]), path) for number, path in numbers if number is not None)
    named += [(f"rank-{rank}", path) for rank, path in ranks]
    found = []
    for name, path in named:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append(TextFile(name, path, status.st_size))
    return found


def text_part(folder: RunFolder, name: str, start: int, end: int) -> bytes | None:
    """Return the bytes of a text from `start` to `end`; None when there is no text of that name.

    RecordError when it cannot be read.
    """
    path = next((each.path for each in text_files(folder) if each.name == name), None)
    if path is None:
        return None
    try:
        return read_part(path, start, end)
    except OSError as error:
        raise RecordError(
            f"{path.name} cannot be read: {error.strerror}.", where=str(path)
        ) from error


def read_text(path: Path, limit: int = 1 << 20) -> str | None:
    """Return a file's text; None if it exceeds `limit` bytes, is unreadable or no regular file."""
    try:
        return read_bytes(path, limit).decode("utf-8", "replace")
    except OSError:
        return None


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
