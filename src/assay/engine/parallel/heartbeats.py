"""Signs of life of one rank: how far it is, and since when, in a small file that others on its
machine read."""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

_BEAT = struct.Struct("<qqqdd")
_FADING = 0.9
"""Of the longest pause so far, what counts after the next one: a first step that compiles is no measure for long."""


class Phase(IntEnum):
    """Activity of a rank. Only of a step is it known how long it usually takes."""

    BUILDING = 0
    STEP = 1
    BETWEEN = 2  # evaluation, checkpoints, handlers
    ENDING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Newest sign of life of a rank. Times are those of `time.monotonic`, which all of a machine
    share.

    `usual_s`: the longest pause between two signs within steps, fading.
    """

    phase: Phase
    step: int
    count: int
    at_s: float
    usual_s: float


class Heartbeats(Protocol):
    """Listener that is told how a rank is getting on. Each call takes less than a microsecond."""

    def step(self, step: int) -> None:
        """Tell that a step begins, after so many."""
        ...

    def beat(self) -> None:
        """Tell that something got done: a micro-batch, a batch of an evaluation."""
        ...

    def between(self) -> None:
        """Tell that the step is made; what follows may take long."""
        ...

    def ending(self) -> None:
        """Tell that the run is over, and its end is being written."""
        ...


class NoHeartbeats:
    """Listener that forgets everything."""

    def step(self, step: int) -> None:
        pass

    def beat(self) -> None:
        pass

    def between(self) -> None:
        pass

    def ending(self) -> None:
        pass


class FileHeartbeats:
    """Signs of life in a file, which outlives a rank that is killed."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(_BEAT.pack(Phase.BUILDING, 0, 0, time.monotonic(), 0.0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BEAT.size)
        self._phase, self._step, self._count = Phase.BUILDING, 0, 0
        self._at, self._usual = time.monotonic(), 0.0

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
        _BEAT.pack_into(self._memory, 0, phase, self._step, self._count, now, self._usual)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the newest sign of life in a file; None where there is none yet."""
    try:
        phase, step, count, at_s, usual_s = _BEAT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return Heartbeat(phase=Phase(phase), step=step, count=count, at_s=at_s, usual_s=usual_s)
