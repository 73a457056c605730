"""Sources of artifacts: bytes, a file, or all files of a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.core.errors import InputError
from assay.core.regular_file import open_regular


def keep_source(source: Any, name: str, keep: Callable[[bytes, str], str]) -> str:
    """Call `keep(data, name)` for each file of a source, and return the digest of all.

    `name` defaults to that of the file or folder. The digest of a folder is that of the names and
    digests of its files. InputError for what cannot be read or is no source.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        if not name:
            fix = 'run.artifact(data, "plot.png")'
            raise InputError("Bytes need a name to be kept under.", fix=fix)
        return keep(bytes(source), name)
    if not isinstance(source, str | os.PathLike):
        fix = "run.artifact(path) keeps a file or folder, run.artifact(data, name) bytes"
        raise InputError(f"A {type(source).__name__} is no artifact.", fix=fix)
    path = Path(os.fsdecode(source))
    name = name or path.resolve().name
    try:
        if not path.is_dir():
            with open(open_regular(path, follow=True), "rb") as file:
                return keep(file.read(), name)
        return _keep_folder(path, name, keep)
    except (OSError, ValueError) as error:  # ValueError: a path may hold no null character
        reason = getattr(error, "strerror", "") or str(error)
        raise InputError(f"The artifact cannot be read: {reason}.", where=str(path)) from error


def _keep_folder(folder: Path, name: str, keep: Callable[[bytes, str], str]) -> str:
    digest = hashlib.sha256()
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        inner = file.relative_to(folder).as_posix()
        line = f"{keep(file.read_bytes(), f'{name}/{inner}')} {inner}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
