"""Stack of a rank that no longer responds, written by the rank itself on a signal.

The handler is C code of `faulthandler`: it runs wherever the main thread is, in a collective or in
another C function that keeps Python from running.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2 if hasattr(signal, "SIGUSR2") else 0)
"""Asks for the stack; no scheduler and no launcher sends it."""

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_COLLECTIVE = f"{os.sep}torch{os.sep}distributed{os.sep}"
_INNERMOST = 4
_PATIENCE_S = 1.0
_QUIET_S = 0.05


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
    try:
        before = path.stat().st_size
        os.kill(pid, SIGNAL)
    except OSError:  # it has not come so far, or is gone
        return RankStack()
    until, size, since = time.monotonic() + _PATIENCE_S, before, 0.0
    while time.monotonic() < until:
        time.sleep(_QUIET_S / 2)
        now = path.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        elif size > before and time.monotonic() - since > _QUIET_S:
            break
    text = path.read_bytes()[before:].decode("utf-8", "replace")
    return RankStack(
        tuple(
            StackFrame(found["file"], int(found["line"]), found["name"])
            for found in _FRAME.finditer(text)
        )
    )
