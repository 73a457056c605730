"""Heartbeats of a run: phase and step, in a small file, and the limits of its silence.

A watchdog ends ranks that are silent for too long; all others only tell of it.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from assay.core.regular_file import read_bytes

_BEAT = struct.Struct("<qqqddqd")
FIRST_STEP_S = 1800.0
"""Least number of seconds that a rank may take before its first step: it may unpack archives."""
STILL_S, STILL_TIMES = 2.0, 3.0
"""A step after a signal is ended past so many seconds, and so many times the usual."""
LEAST_S, HANG_TIMES = 10.0, 10.0
"""A step counts as a hang past so many seconds, and so many times the usual."""
STALLED_S = 600.0
"""Silence outside of steps that counts as a hang: an evaluation, a checkpoint, a first step."""
SUSPENDED_S = 5.0
"""Seconds for which a process may be suspended (SIGSTOP)."""

_FADING = 0.9
"""Factor on the longest pause, applied at each next one: a first step that compiles fades."""


class Phase(IntEnum):
    """Activity of a rank. Only for steps it is known how long they usually take."""

    BUILDING = 0
    STEP = 1
    BETWEEN = 2  # evaluation, checkpoints, handlers
    ENDING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Newest heartbeat of a rank. Times are those of `time.monotonic`, one clock for a machine.

    `usual_s` is the longest pause between two heartbeats within steps, fading. `at_ns` is `at_s` in
    Unix time, by the clock of the moment at which the file was made.
    """

    phase: Phase
    step: int
    count: int
    at_s: float
    usual_s: float
    at_ns: int = 0

    @property
    def is_building(self) -> bool:
        """True before the first step."""
        return self.phase is Phase.BUILDING


class Heartbeats(Protocol):
    """Receiver of the heartbeats of this rank. Each call takes less than a microsecond."""

    def step(self, step: int) -> None:
        """Report that a step begins, after `step` completed ones."""
        ...

    def beat(self) -> None:
        """Report progress: a micro-batch, or a batch of an evaluation."""
        ...

    def between(self) -> None:
        """Report the end of a step; handlers, which may take long, follow."""
        ...

    def ending(self) -> None:
        """Report the end of the run, while it is being recorded."""
        ...


class NoHeartbeats:
    """Receiver that ignores every heartbeat."""

    def step(self, step: int) -> None:
        pass

    def beat(self) -> None:
        pass

    def between(self) -> None:
        pass

    def ending(self) -> None:
        pass


class FileHeartbeats:
    """Heartbeats in a memory-mapped file, which outlives a rank that is killed."""

    def __init__(self, path: Path) -> None:
        self._made = time.time_ns(), time.monotonic()
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, _BEAT.pack(Phase.BUILDING, 0, 0, self._made[1], 0.0, *self._made))
            self._memory = mmap.mmap(descriptor, _BEAT.size)
        finally:
            os.close(descriptor)
        self._phase, self._step, self._count = Phase.BUILDING, 0, 0
        self._at = time.monotonic()
        self._usual = 0.0

    def step(self, step: int) -> None:
        self._step = step
        self._tell(Phase.STEP)

    def beat(self) -> None:
        self._tell(self._phase)

    def between(self) -> None:
        self._tell(Phase.BETWEEN)

    def ending(self) -> None:
        self._tell(Phase.ENDING)

    def _tell(self, phase: Phase) -> None:
        now = time.monotonic()
        if self._phase is Phase.STEP:
            self._usual = max(now - self._at, _FADING * self._usual)
        self._phase, self._at = phase, now
        self._count += 1
        beat = phase, self._step, self._count, now, self._usual
        # Not `pack_into`: it fills the place with zeros first, and a watchdog that reads just then
        # would see a rank that has been silent since the machine was started.
        self._memory[:] = _BEAT.pack(*beat, *self._made)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the newest heartbeat in a file, None if there is none yet."""
    try:
        phase, step, count, at_s, usual_s, made_ns, made_s = _BEAT.unpack(
            read_bytes(path, _BEAT.size)
        )
    except (OSError, struct.error):
        return None
    return Heartbeat(
        phase=Phase(phase),
        step=step,
        count=count,
        at_s=at_s,
        usual_s=usual_s,
        at_ns=made_ns + int((at_s - made_s) * 1e9),
    )
