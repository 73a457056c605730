"""Stack of a rank that no longer responds, written by the rank itself on a signal."""

from __future__ import annotations

import faulthandler
import os
import re
from dataclasses import dataclass
from pathlib import Path

from assay.core.stacks import SIGNAL, request_stacks

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_COLLECTIVE = f"{os.sep}torch{os.sep}distributed{os.sep}"
_INNERMOST = 4


@dataclass(frozen=True, slots=True)
class StackFrame:
    """Line of a stack."""

    file: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class RankStack:
    """Frames of a rank's main thread, the innermost first; none if it did not respond."""

    frames: tuple[StackFrame, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """True for a rank that waits for others: its innermost frames are those of a collective."""
        return any(_COLLECTIVE in frame.file for frame in self.frames[:_INNERMOST])


def offer_stack(path: Path) -> None:
    """Write the stack of this process to `path` on each request, from now on."""
    if SIGNAL:
        # Never closed: the handler writes to it until the process ends.
        faulthandler.register(SIGNAL, file=path.open("w", encoding="utf-8"), all_threads=False)


def request_stack(pid: int, path: Path) -> RankStack:
    """Return the stack of a process that offers it under `path`."""
    text = request_stacks(pid, path)
    return RankStack(
        tuple(
            StackFrame(found["file"], int(found["line"]), found["name"])
            for found in _FRAME.finditer(text)
        )
    )
