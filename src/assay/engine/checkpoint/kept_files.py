"""Files in which the user's code keeps a state: those that it both reads and writes in a step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from assay.core.code_places import is_of_house, is_of_user

_MAX_FRAMES = 50
_COMPILERS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_dynamo", "_inductor", "triton"))
_active: KeptFiles | None = None
_is_heard = False


class KeptFiles:
    """Files that the user's code opens between `start` and `stop`, in this OS process.

    `is_ignored` is asked for each: data read and cache what they want.
    """

    def __init__(self, is_ignored: Callable[[], bool]) -> None:
        self.is_ignored = is_ignored
        self.read: set[str] = set()
        self.written: set[str] = set()

    def start(self) -> None:
        global _active, _is_heard
        _active = self
        if not _is_heard:  # CPython cannot take an audit hook away: it costs 0.1 us an event
            _is_heard = True
            sys.addaudithook(_hear)

    def stop(self) -> list[str]:
        """Return the files that were both read and written, by their paths from here."""
        global _active
        if _active is self:
            _active = None
        here = os.getcwd() + os.sep
        return sorted(path.removeprefix(here) for path in self.read & self.written)

    def note(self, path: object, flags: object) -> None:
        """Note that a file is opened, if it is the user's code that opens it."""
        if not isinstance(path, str | bytes | os.PathLike) or not isinstance(flags, int):
            return
        if not _is_opened_by_user() or self.is_ignored():
            return
        place = os.path.abspath(os.fsdecode(path))
        access = flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
        if access != os.O_RDONLY:
            self.written.add(place)
        if access != os.O_WRONLY:
            self.read.add(place)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is not None and event == "open":
        path, _, flags = arguments
        _active.note(path, flags)


def _is_opened_by_user() -> bool:
    """Return True if the nearest frame that is no library's is the user's, not one of assay.

    A compiler works within the call of the user's code that it compiles; its files are its own.
    """
    frame = sys._getframe(3)
    for _ in range(_MAX_FRAMES):
        file = frame.f_code.co_filename
        if is_of_user(file):
            return True
        is_compiler = any(name in file for name in _COMPILERS)
        if is_compiler or is_of_house(file) or frame.f_back is None:
            return False
        frame = frame.f_back
    return False
