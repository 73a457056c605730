"""Workers that hang or die: the sample and the stack of a silent one, and what ended one."""

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
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any, NamedTuple

from assay.core.errors import AssayError
from assay.core.processes import describe_exit, state_and_group
from assay.core.signals import is_crash

_DUMP_S = 2.0
STARTING, IDLE, BUSY = -3, -2, -1
"""Stand-ins for the index of the current sample.

A worker that is starting would die of the signal that asks for its stack.
"""
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
_OWN = os.path.dirname(os.path.abspath(__file__))


class WorkerError(AssayError):
    """A worker process ended, or was silent for too long."""


class WorkerView(NamedTuple):
    """View of a worker from outside: the shared index of its sample, and the pipe of its stack."""

    place: Any
    stack: Connection


def on_request(writer: Connection) -> None:
    """Write the stack of every thread to `writer` at SIGUSR1; called in the worker process."""
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1, file=writer.fileno(), all_threads=True)


def describe_silence(
    views: Sequence[WorkerView], pids: Sequence[int], *, due: int, split: str, seconds: float
) -> tuple[str, str]:
    """Return (sentence about the silent worker, its stack with one frame a line).

    That is the one that owes the next batch, unless it waits and another one does not: one that is
    stopped may hold the lock of the queue.
    """
    stopped = [number for number, pid in enumerate(pids) if state_and_group(pid)[0] in _STATES]
    busy = [number for number, view in enumerate(views) if view.place.value != IDLE]
    number = due if due in stopped + busy else [*stopped, *busy, due][0]
    pid, (place, stack) = pids[number], views[number]
    at = f"at sample {place.value}" if place.value >= 0 else "at a batch"
    if place.value == STARTING:
        frames = ["it is being started: it imports modules and unpickles the data set"]
    else:
        frames = _stack_of(pid, stack)
    if not frames:
        state, _ = state_and_group(pid)
        frames = [_STATES.get(state, f"it does not answer (state {state})")]
    what = f"The loader worker {number} of data.{split} (pid {pid}) has been {at}"
    return f"{what} for {seconds:.3g} s.", "\n       ".join(frames)


def _stack_of(pid: int, reader: Connection) -> list[str]:
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
    first = next((i for i, frame in enumerate(ours) if _is_own(frame)), len(ours))
    # Those of the user's code and its calls; all if the loader itself is at work.
    return [f"{frame['file']}:{frame['line']} in {frame['name']}" for frame in ours[:first] or ours]


def _is_own(frame: re.Match[str]) -> bool:
    return os.path.dirname(frame["file"]) == _OWN


_STATES = {
    "T": "it is stopped: by SIGSTOP, or by a debugger",
    "t": "it is stopped by a debugger",
    "D": "it waits inside of the kernel: for a disk, or for a file system on a network",
}


def describe_worker_end(number: int, process: BaseProcess, split: str) -> WorkerError:
    """Return the error for a worker process that has ended."""
    code = process.exitcode
    fix = "What it printed above says why."
    how = describe_exit(code) if code is not None else "ended"
    if code is not None and code < 0:
        fix = (
            "Look at the C code that it calls."
            if is_crash(-code)
            else "Something outside ended it."
        )
        fix = _OUT_OF_MEMORY if -code == signal.SIGKILL else fix
    return WorkerError(
        f"The loader worker {number} of data.{split} (pid {process.pid}) {how}.", fix=fix
    )


_OUT_OF_MEMORY = (
    "Most likely the memory ran out (dmesg | tail): use fewer workers, smaller "
    "batches or less prefetch."
)
_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\)")
_SIGNAL = re.compile(r"by signal: (?P<name>[\w ]+)")
_PATIENCE_S = 0.5


def find_death(error: BaseException) -> WorkerError | None:
    """Return the error to raise for a dead worker of a user's own DataLoader, else None."""
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


def _death_error(pids: str, signal: str) -> WorkerError:
    which = f" (pid {pids})" if pids else ""
    how = f" by a signal ({signal})" if signal else ""
    return WorkerError(
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
