"""Ranks that get no further: who watches them, who ends them, and the words for what they did."""

from __future__ import annotations

import linecache
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.core.code_places import is_of_house, is_of_user
from assay.core.schema import parse_duration_s
from assay.engine.parallel.distributed_group import DistributedGroup
from assay.engine.parallel.rank_folder import EndOrder, RankFolder
from assay.engine.parallel.watchdog import (
    RankStack,
    RankWatchdog,
    StackFrame,
    StalledRank,
    StalledRanks,
    Standstill,
    SuspendedRanks,
    describe_suspension,
)
from assay.formats.heartbeats import FIRST_STEP_S
from assay.formats.lease import this_place

_SHOWN_FRAMES = 5


def describe_standstill(found: Standstill, *, timeout: str) -> str:
    """Return the message about ranks that hang: one line, and indented ones below it."""
    if not found.is_hang:
        return "The ranks did not end by themselves after the signals."
    culprits = found.culprits
    lines = [_headline(found, culprits)]
    for each in culprits:
        lines += [f"rank {each.rank} stands at:", *_traceback_lines(each.stack)]
    lines += [
        f"rank {each.rank} waits at {_waiting_place(each.stack)}"
        for each in found.ranks
        if each not in culprits
    ]
    beat = culprits[0].beat
    if not found.signal and beat is not None and beat.is_building:
        lines.append(
            f"Before its first step a rank may take {FIRST_STEP_S / 60:.0f} min, or"
            f" [parallel] timeout ({timeout}) if that is longer: all ranks were ended."
        )
    elif not found.signal:
        lines.append(f"[parallel] timeout is {timeout}: all ranks were ended.")
    return "\n  ".join(lines)


def _headline(found: Standstill, culprits: Sequence[StalledRank]) -> str:
    first = culprits[0]
    silent_s = min(each.silent_s for each in culprits)
    since = f"for {silent_s:.0f} s"
    if first.beat is not None:
        is_building = first.beat.is_building
        since += ", before the first step" if is_building else f" in step {first.beat.step + 1}"
    if not all(each.stack.is_waiting for each in culprits):
        return f"Rank {first.rank} (pid {first.pid}) has stood still {since}."
    if len(found.ranks) == 1:
        return f"Rank {first.rank} has waited for ranks of another machine {since}."
    return f"The ranks have waited for each other {since}: not all of them join one collective."


def _traceback_lines(stack: RankStack) -> list[str]:
    """Return lines as in a traceback: frames of the user, then the innermost one."""
    if not stack.frames:
        return ["  (it did not say where)"]
    lines = []
    for frame in reversed([stack.frames[0], *_user_frames(stack.frames[1:])]):
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.name}')
        source = linecache.getline(frame.file, frame.line).strip()
        lines += [f"    {source}"] if source else []
    return lines


def _waiting_place(stack: RankStack) -> str:
    """Name the line at which a rank waits."""
    if not stack.frames:
        return "a place that it did not tell"
    frame = next(iter(_user_frames(stack.frames)), stack.frames[0])
    return f"{Path(frame.file).name}, line {frame.line}, in {frame.name}"


def _user_frames(frames: Sequence[StackFrame]) -> list[StackFrame]:
    """Return the frames of the user, innermost first; without any, assay's own innermost frame."""
    theirs = [frame for frame in frames if is_of_user(frame.file)]
    return theirs[:_SHOWN_FRAMES] or [frame for frame in frames if is_of_house(frame.file)][:1]


def standstill_checks(
    ranks: Callable[[], RankFolder], *, timeout: str, **how: Any
) -> tuple[SuspendedRanks, StalledRanks]:
    """Return the checks that end ranks which are suspended or hang, with the cause.

    `how` are arguments of `StalledRanks`.
    """

    def order(found: Standstill) -> None:
        cause = describe_standstill(found, timeout=timeout)
        ranks().order(EndOrder(cause=cause, signal=found.signal))

    def fail_suspended(rank: int, pid: int) -> None:
        ranks().report_failure(rank, describe_suspension(rank, pid))

    timeout_s = parse_duration_s(timeout)
    return (
        SuspendedRanks(lambda: ranks().pids(), fail_suspended),
        StalledRanks(lambda: ranks().watched_ranks(), order, timeout_s=timeout_s, **how),
    )


@contextmanager
def watched_from_inside(ranks: DistributedGroup, rank: int, timeout: str) -> Iterator[RankFolder]:
    """Watch over ranks of this machine that another launcher has started. Collective.

    Yields the folder in which they report.
    """
    with tempfile.TemporaryDirectory(prefix="assay-rank-", ignore_cleanup_errors=True) as own:
        places = ranks.all_gather_world((this_place(), own))
        here = [path for place, path in places if place == this_place()]
        folder = RankFolder(Path(here[0]))
        folder.begin(rank)
        ranks.barrier()
        with RankWatchdog(*standstill_checks(lambda: folder, timeout=timeout)):
            yield folder
