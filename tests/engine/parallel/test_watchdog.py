"""The watchdog of ranks ends one that stands still before its first step, too."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from assay.engine.parallel import watchdog
from assay.engine.parallel.standstill import describe_standstill
from assay.engine.parallel.watchdog import (
    RankStack,
    StackFrame,
    StalledRanks,
    Standstill,
    WatchedRank,
)
from assay.formats.heartbeats import FIRST_STEP_S, FileHeartbeats

TIMEOUT_S = 600.0


class Clock:
    """Clock that is `late_s` ahead of the one that the heartbeats are told by."""

    def __init__(self) -> None:
        self.late_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.late_s


class Scene:
    """One rank that exists in its heartbeats only, and the check that watches it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, timeout_s: float) -> None:
        self.clock = Clock()
        self.killed: list[int] = []
        self.found: list[Standstill] = []
        self.beat = folder / "beat"
        FileHeartbeats(self.beat)
        stack = RankStack((StackFrame(str(folder / "net.py"), 3, "__init__"),))
        patch.setattr(watchdog, "time", self.clock)
        patch.setattr(watchdog, "request_stack", lambda pid, path: stack)
        patch.setattr(
            watchdog, "kill", lambda pid, number=signal.SIGKILL: self.killed.append(number)
        )
        rank = WatchedRank(rank=1, pid=77, beat=self.beat, stack=folder / "stack")
        self.check = StalledRanks(lambda: [rank], self.found.append, timeout_s=timeout_s)

    def is_ended_after(self, seconds: float) -> bool:
        self.clock.late_s = seconds
        self.check()
        return bool(self.found)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch, TIMEOUT_S)


def test_a_rank_that_never_begins_its_first_step_is_ended_with_its_stack(scene: Scene) -> None:
    assert not scene.is_ended_after(FIRST_STEP_S - 60)  # it may unpack an archive
    assert scene.is_ended_after(FIRST_STEP_S + 60)
    assert scene.killed == [signal.SIGTERM]

    told = describe_standstill(scene.found[0], timeout="10 min")

    assert told.startswith("Rank 1 (pid 77) has stood still for 18")
    assert ", before the first step." in told and "net.py" in told
    assert told.endswith(
        "Before its first step a rank may take 30 min, or [parallel] timeout (10 min) if that is"
        " longer: all ranks were ended."
    )


def test_a_longer_timeout_holds_before_the_first_step_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch, 2 * FIRST_STEP_S)

    assert not scene.is_ended_after(2 * FIRST_STEP_S - 60)
    assert scene.is_ended_after(2 * FIRST_STEP_S + 60)


def test_the_very_first_step_has_the_timeout_though_nothing_was_learned_yet(scene: Scene) -> None:
    FileHeartbeats(scene.beat).step(0)

    assert not scene.is_ended_after(TIMEOUT_S - 60)
    assert scene.is_ended_after(TIMEOUT_S + 60)

    told = describe_standstill(scene.found[0], timeout="10 min")
    assert " in step 1." in told and "[parallel] timeout is 10 min" in told
    assert scene.killed == []  # it is told to end by itself first
