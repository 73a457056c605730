"""Workers that hang or die: how long a batch may take, the stack of a worker, what ended it."""

from __future__ import annotations

import faulthandler
import os
import re
import select
import signal
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

from assay.core.errors import AssayError

SAY_S, SAY_TIMES = 30.0, 10.0
"""Least silence in s, and in multiples of the longest batch so far, that is reported."""
END_S, END_TIMES = 300.0, 50.0
"""Least silence that ends the run; long enough for a batch that waits for a busy disk."""
FIRST_S = 1800.0
"""As long as no batch has come: the first one opens files, and may unpack whole archives."""
_DUMP_S = 2.0
STARTING, NOTHING = -2, -1
"""Stand-ins for the index of the current sample.

A worker that is starting would die of the signal that asks for its stack.
"""
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
_OWN = os.path.dirname(os.path.abspath(__file__))


class WorkerError(AssayError):
    """A worker process ended, or was silent for too long."""


class Patience:
    """Time limit of a batch: `timeout_s`, 0 for none, None for one learned from past batches."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        self.longest_s: float | None = None

    def took(self, seconds: float) -> None:
        """Note how long loading one batch has taken."""
        if self.longest_s is None or seconds > self.longest_s:
            self.longest_s = seconds

    @property
    def say_s(self) -> float | None:
        """Seconds of silence after which to report it; None for never."""
        if self.timeout_s is not None:
            return self.timeout_s or None
        return max(SAY_S, SAY_TIMES * (self.longest_s or 0.0))

    @property
    def end_s(self) -> float | None:
        """Seconds of silence after which to end the run; None for never."""
        if self.timeout_s is not None:
            return self.timeout_s or None
        return FIRST_S if self.longest_s is None else max(END_S, END_TIMES * self.longest_s)

    def describe_past(self) -> str:
        """Return what the limit was learned from, for the user; "" for one that was given."""
        if self.timeout_s is not None:
            return ""
        if self.longest_s is None:
            return "no batch has come yet"
        return f"no batch so far took more than {self.longest_s:.2g} s"


def on_request(writer: Connection) -> None:
    """Write the stack of every thread to `writer` at SIGUSR1; called in the worker process."""
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1, file=writer.fileno(), all_threads=True)


def stack_of(pid: int, reader: Connection) -> list[str]:
    """Return the frames of a worker, innermost first, as `FILE:LINE in NAME`."""
    text = b""
    with suppress(OSError, AttributeError):  # it is gone; Windows has no such signal
        os.kill(pid, signal.SIGUSR1)
        end = monotonic() + _DUMP_S
        while (left := end - monotonic()) > 0:
            if not select.select([reader], [], [], left if not text else 0.1)[0]:
                break
            text += os.read(reader.fileno(), 1 << 16)
    threads = re.split(
        r"^(?:Current thread|Thread) .*\n", text.decode("utf-8", "replace"), flags=re.MULTILINE
    )[1:]
    found = [
        [match for line in thread.splitlines() if (match := _FRAME.match(line))]
        for thread in threads
    ]
    ours = next(
        (frames for frames in found if any(_is_own(frame) for frame in frames)),
        found[0] if found else [],
    )
    return [f"{frame['file']}:{frame['line']} in {frame['name']}" for frame in _above_loader(ours)]


def _is_own(frame: re.Match[str]) -> bool:
    return os.path.dirname(frame["file"]) == _OWN


def _above_loader(frames: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """Return the frames of the user's code and its calls; all if the loader itself is at work."""
    first = next((i for i, frame in enumerate(frames) if _is_own(frame)), len(frames))
    return list(frames[:first] or frames)


def standing_still(
    who: str, pid: int, where: str, seconds: float, stack: Sequence[str], patience: Patience
) -> tuple[str, str]:
    """Return (sentence about a silent worker, its stack with one frame a line)."""
    known = patience.describe_past()
    what = (
        f"{who} (pid {pid}) has been at {where} for {seconds:.3g} s{f'; {known}' if known else ''}."
    )
    if stack:
        return what, "\n       ".join(stack)
    return what, _state_of(pid)


def _state_of(pid: int) -> str:
    try:
        state = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="ascii", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (OSError, IndexError):  # not on Linux, or it is gone
        return "it does not answer"
    known = {"T": "it is stopped: by SIGSTOP, or by a debugger", "t": "it is stopped by a debugger"}
    known["D"] = "it waits inside of the kernel: for a disk, or for a file system on a network"
    return known.get(state, f"it does not answer (state {state})")


_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\)")
_SIGNAL = re.compile(r"by signal: (?P<name>[\w ]+)")
_PATIENCE_S = 0.5


class WorkerDiedError(AssayError):
    """A process that loads data was ended by something else than its own code."""


def find_death(error: BaseException) -> WorkerDiedError | None:
    """Return the error to raise for a dead worker of torch's DataLoader, else None."""
    if isinstance(error, OSError | EOFError) and _is_of_loader(error):
        # Its pipe broke before torch heard of its end, which raises wherever it is heard of: let
        # that be here.
        try:
            time.sleep(_PATIENCE_S)
        except RuntimeError as heard:
            error = heard
        else:
            return _death_error("", "")
    found = _DIED.search(str(error)) if isinstance(error, RuntimeError) else None
    if found is None:
        return None
    signal = _SIGNAL.search(f"{error} {error.__cause__} {error.__context__}")
    return _death_error(found["pids"].strip(), signal["name"].strip() if signal else "")


def _death_error(pids: str, signal: str) -> WorkerDiedError:
    which = f" (pid {pids})" if pids else ""
    how = f" by a signal ({signal})" if signal else ""
    return WorkerDiedError(
        f"A process that loads data{which} was ended{how}.",
        fix=(
            "Mostly memory ran out: fewer workers, smaller batches, or a larger /dev/shm of the "
            "container."
        ),
    )


def _is_of_loader(error: BaseException) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(
        frame.f_globals.get("__name__", "").startswith("torch.utils.data") for frame in frames
    )
