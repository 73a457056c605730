"""Open runs that do not get on: that hang, or no longer learn."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from assay.core.errors import RecordError
from assay.core.formatting import duration, number
from assay.core.processes import is_suspended
from assay.formats import lease as leases
from assay.formats.heartbeats import (
    HANG_TIMES,
    LEAST_S,
    STALLED_S,
    SUSPENDED_S,
    Heartbeat,
    Phase,
    read_heartbeat,
)
from assay.formats.run_file import Summary
from assay.store.layout import RunFolder
from assay.store.series import read_series


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStandstill:
    """Moment (Unix ns) since which a run counts as standing still, and one line for people.

    `pid` is its OS process, 0 where it is not known.
    """

    at_ns: int
    text: str
    pid: int = 0


def standstill_of(folder: RunFolder) -> RunStandstill | None:
    """Return the standstill of a run of this machine that writes heartbeats; None for none.

    The time is the same at each call, for as long as the run is silent.
    """
    beat = read_heartbeat(folder.heartbeat)
    lease = leases.read(folder.path)
    if beat is None or lease is None or lease.place != leases.this_place():
        return None
    silent_s = time.monotonic() - beat.at_s
    if silent_s > SUSPENDED_S and is_suspended(lease.pid):
        text = f"process {lease.pid} is suspended (SIGSTOP), at step {beat.step:,}"
        return RunStandstill(at_ns=beat.at_ns + int(SUSPENDED_S * 1e9), text=text, pid=lease.pid)
    limit_s = _limit_s(beat)
    if silent_s <= limit_s:
        return None
    return RunStandstill(
        at_ns=beat.at_ns + int(limit_s * 1e9), text=_words(beat, silent_s), pid=lease.pid
    )


def _limit_s(beat: Heartbeat) -> float:
    if beat.phase is not Phase.STEP or not beat.usual_s:
        return STALLED_S
    return max(LEAST_S, HANG_TIMES * beat.usual_s)


def _words(beat: Heartbeat, silent_s: float) -> str:
    if beat.phase is Phase.STEP and beat.usual_s:
        since = f"no step for {duration(silent_s)} (usually {beat.usual_s:.3g} s)"
    else:
        since = f"no sign of life for {duration(silent_s)}"
    return f"{since}, at step {beat.step:,}"


LEAST_VALUES = 20
"""Values that a metric must have before anything is said about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Moment (Unix ns) since which a run no longer learns, and one line for people."""

    at_ns: int
    text: str


def plateau_of(
    folder: RunFolder, best: tuple[str, str], summaries: Mapping[str, Summary]
) -> Plateau | None:
    """Return the plateau of a run; None while it learns, or where nobody can tell.

    `best` are metric and mode of `[checkpoint] best`, or empty: then `valid/loss` counts, else
    `train/loss`. A run no longer learns when its best value lies in the first half of its steps,
    of at least `LEAST_VALUES` values.
    """
    losses = [(name, "min") for name in ("valid/loss", "train/loss")]
    name, mode = next((each for each in (best, *losses) if each[0] in summaries), ("", ""))
    summary = summaries.get(name)
    if summary is None or summary.count < LEAST_VALUES:
        return None
    at_best, value = summary.at_min, summary.min
    if mode == "max":
        at_best, value = summary.at_max, summary.max
    if summary.step <= 2 * at_best:
        return None
    at_ns = _since_ns(folder, name, at_best)
    text = f"{name} has not improved on {number(value)} since step {at_best:,}"
    return Plateau(at_ns=at_ns, text=text) if at_ns else None


def _since_ns(folder: RunFolder, name: str, at_best: int) -> int:
    """Return the time of the value that made it a plateau, the same at each call; 0 for none."""
    try:
        series = read_series(folder.metrics, names=[name])[name]
    except (OSError, KeyError, RecordError):
        return 0
    steps = series.steps[LEAST_VALUES - 1 :]
    times = series.times_ns[LEAST_VALUES - 1 :]
    late = times[steps > 2 * at_best]
    return int(late[0]) if len(late) else 0
