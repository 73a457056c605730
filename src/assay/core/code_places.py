"""Places of code: files of assay, of installed libraries, and of the user."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

HOUSE = str(Path(__file__).parents[1])
_LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_ELSEWHERE = (*(f"{folder}{os.sep}" for folder in (HOUSE, *_LIBRARIES)), "<")


def is_of_user(file: str) -> bool:
    """Return True for a file that is neither assay's nor of an installed library."""
    return bool(file) and not file.startswith(_ELSEWHERE)


def is_of_house(file: str) -> bool:
    """Return True for a file of assay."""
    return file.startswith(HOUSE + os.sep)
