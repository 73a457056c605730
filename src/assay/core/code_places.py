"""Places of code: files of assay, of installed libraries, and of the user."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

HOUSE = str(Path(__file__).parents[1])
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_NOTEBOOK = re.compile(r"[/\\]ipykernel_\d+[/\\][^/\\]+\.py\Z")
_LIBRARIES = tuple(
    {
        os.path.realpath(folder)
        for folder in sysconfig.get_paths().values()
        if folder and os.path.isdir(folder)
    }
    - {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
    | {os.path.realpath(HOUSE)}
)
"""Folders of installed code, which is no user's even inside a user's folder (a `.venv`)."""
_places: dict[str, None] = {}
"""Files and folders of modules that a config of this OS process has named."""


def add_user_code(places: Iterable[str]) -> None:
    """Note files and folders of modules that a config names: what they hold is the user's code."""
    _places.update(dict.fromkeys(places))


def is_of_user(file: str) -> bool:
    """Return True for a file of the project, or of a folder whose modules a config names.

    The project is the working directory and the folder of the script. A cell of a notebook is the
    user's. What a package manager has installed is not, nor is a library elsewhere.
    """
    if not file or file.startswith("<"):
        return False
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.dirname(os.path.abspath(main)) if main else ""
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        here = ""
    return _is_under(file, tuple(filter(None, (here, script, *_places))))


@lru_cache(maxsize=4096)
def _is_under(file: str, folders: tuple[str, ...]) -> bool:
    path = os.path.abspath(file)
    return path in folders or bool(_NOTEBOOK.search(file)) or lies_under(path, folders)


def lies_under(file: str, roots: Sequence[str]) -> bool:
    """Return True for a source file below `roots` that belongs to no installed package there."""
    # Most files lie below no root: this asks of all roots in one call.
    return file.startswith(tuple(roots)) and any(
        file.startswith(_folder(root))
        and not _INSTALLED.search(file, len(root.rstrip(os.sep)))
        and not any(
            _folder(lib).startswith(_folder(root)) and file.startswith(_folder(lib))
            for lib in _LIBRARIES
        )
        for root in roots
    )


def is_of_house(file: str) -> bool:
    """Return True for a file of assay."""
    return file.startswith(HOUSE + os.sep)


def _folder(path: str) -> str:
    return path.rstrip(os.sep) + os.sep
