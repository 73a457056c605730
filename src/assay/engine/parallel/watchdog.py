"""Watchdog of the ranks of one machine: it ends those that are suspended or hang, and says where."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.core.processes import (
    AT_ONCE_S,
    BUILDING_S,
    ORDERED_S,
    WRITING_S,
    is_suspended,
    kill,
)
from assay.core.stacks import SIGNAL, request_stacks
from assay.formats.heartbeats import (
    FIRST_STEP_S,
    STILL_S,
    STILL_TIMES,
    SUSPENDED_S,
    Heartbeat,
    Phase,
    read_heartbeat,
)

CHECK_S = 0.25

Check = Callable[[], object]


class RankWatchdog:
    """Thread that calls `checks` four times a second, from `__enter__` to `__exit__`."""

    def __init__(self, *checks: Check) -> None:
        self._checks = checks
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="assay-watch", daemon=True)

    def __enter__(self) -> RankWatchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(CHECK_S):
            for check in self._checks:
                check()


class SuspendedRanks:
    """Check that kills a rank suspended (SIGSTOP) for `SUSPENDED_S`, for which all others wait.

    `tell(rank, pid)` is called before. A rank held by a debugger is left alone. It counts checks,
    not seconds: this process may be suspended with the rank.
    """

    def __init__(
        self, pids: Callable[[], Mapping[int, int]], tell: Callable[[int, int], object]
    ) -> None:
        self.pids = pids
        self.tell = tell
        self._counts: dict[int, int] = {}

    def __call__(self) -> None:
        for rank, pid in self.pids().items():
            self._counts[pid] = self._counts.get(pid, 0) + 1 if is_suspended(pid) else 0
            if self._counts[pid] == SUSPENDED_S / CHECK_S:
                self.tell(rank, pid)
                kill(pid)


class LostParent:
    """Check that sends this process SIGTERM once its `parent` is gone."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self) -> None:
        if self.parent and os.getppid() != self.parent:
            self.parent = 0
            os.kill(os.getpid(), signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRank:
    """Rank on this machine, with the files of its heartbeats and its stack."""

    rank: int
    pid: int
    beat: Path
    stack: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRank:
    """Rank that makes no progress: since when, its last heartbeat, and its stack."""

    rank: int
    pid: int
    silent_s: float
    beat: Heartbeat | None
    stack: RankStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Ranks of a machine when one of them makes no progress.

    `culprits` are the ranks that do not wait for others; if all wait, all of them. `signal` is the
    one that started the search, 0 for the timeout; `is_hang` is False if the ranks were only late
    to end.
    """

    ranks: tuple[StalledRank, ...]
    signal: int = 0
    is_hang: bool = True

    @property
    def culprits(self) -> tuple[StalledRank, ...]:
        return tuple(each for each in self.ranks if not each.stack.is_waiting) or self.ranks


class StalledRanks:
    """Check that ends all ranks of this machine once one of them makes no progress.

    A rank may be silent for `timeout_s`, before its first step for at least `FIRST_STEP_S`. After a
    signal (`heard`: number and time) a step may take no more than a few times what steps take,
    after a second one next to nothing. Before its first step a rank ends soon after the first
    signal, and soon after `departed`: signal and time of a rank that has ended before the others
    have met.

    `end` is called first, and has the ranks end by themselves. SIGTERM follows for the ranks that
    are not training yet, as nothing else may reach them, and SIGKILL after `ORDERED_S` for all that
    are left.
    """

    def __init__(
        self,
        ranks: Callable[[], Iterable[WatchedRank]],
        end: Callable[[Standstill], object],
        *,
        timeout_s: float,
        heard: list[tuple[int, float]] | None = None,
        departed: Callable[[], tuple[int, float] | None] = lambda: None,
    ) -> None:
        self.ranks = ranks
        self.end = end
        self.timeout_s = timeout_s
        self.heard = heard if heard is not None else []
        self.departed = departed
        self._doomed: dict[int, float] = {}

    def __call__(self) -> None:
        now = time.monotonic()
        ranks = list(self.ranks())
        for each in ranks:
            if now > self._doomed.get(each.pid, now):
                kill(each.pid)
        alive = [each for each in ranks if each.pid not in self._doomed]
        beats = {each.rank: read_heartbeat(each.beat) for each in alive}
        departed = self.departed() if alive else None
        is_hang = any(self._hangs(beat, now) for beat in beats.values())
        is_late = any(self._is_late(beat, departed, now) for beat in beats.values())
        if not is_hang and not is_late:
            return
        first = self.heard[0] if self.heard else departed
        found = Standstill(
            ranks=tuple(_look_at_stalled(each, beats[each.rank], now) for each in alive),
            signal=first[0] if first is not None else 0,
            is_hang=is_hang,
        )
        self.end(found)
        for each in alive:
            if _is_before_training(beats[each.rank]):
                kill(each.pid, signal.SIGTERM)
        self._doomed |= {each.pid: time.monotonic() + ORDERED_S for each in alive}

    def _hangs(self, beat: Heartbeat | None, now: float) -> bool:
        """Return True for a rank that has stopped making progress by itself."""
        if beat is None:
            return False
        silent_s = now - beat.at_s
        if beat.is_building:
            return silent_s > max(FIRST_STEP_S, self.timeout_s)
        if self.heard and beat.phase is Phase.STEP:
            limit_s = max(STILL_S, STILL_TIMES * beat.usual_s)
            if now - self.heard[0][1] > STILL_S and silent_s > limit_s:
                return True
        return silent_s > self.timeout_s

    def _is_late(
        self, beat: Heartbeat | None, departed: tuple[int, float] | None, now: float
    ) -> bool:
        """Return True for a rank that should have ended by now.

        A rank that is not training yet obeys the first signal at once, unless it is blocked in C:
        in a rendezvous that a departed rank will never join, or in a collective.
        """
        if _is_before_training(beat):
            if departed is not None and now - departed[1] > AT_ONCE_S:
                return True
            if self.heard and now - self.heard[0][1] > BUILDING_S:
                return True
        if len(self.heard) < 2:
            return False
        is_writing = beat is not None and beat.phase is Phase.ENDING
        return now - self.heard[1][1] > (WRITING_S if is_writing else AT_ONCE_S)


def _is_before_training(beat: Heartbeat | None) -> bool:
    """Return True for a rank that has not begun its first step."""
    return beat is None or beat.is_building


def _look_at_stalled(rank: WatchedRank, beat: Heartbeat | None, now: float) -> StalledRank:
    silent_s = now - beat.at_s if beat is not None else 0.0
    stack = request_stack(rank.pid, rank.stack)
    return StalledRank(rank=rank.rank, pid=rank.pid, silent_s=silent_s, beat=beat, stack=stack)


def describe_suspension(rank: int, pid: int) -> str:
    """Say why a suspended rank was killed."""
    return f"Rank {rank} (pid {pid}) was stopped for {SUSPENDED_S:.0f} s (SIGSTOP), and was ended."


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
