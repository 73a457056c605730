"""Standstill of a run that lives: it was suspended, or a step takes far longer than steps did."""

from __future__ import annotations

import time
from dataclasses import dataclass

from assay.core import lease as leases
from assay.core.formatting import duration
from assay.core.heartbeats import Heartbeat, Phase, read_heartbeat
from assay.core.stacks import is_suspended
from assay.store.layout import RunFolder

HANG_TIMES = 10
"""A step that takes so many times the usual hangs."""
LEAST_S = 10.0
"""Silence within a step that is no hang, however short its steps are."""
SUSPENDED_S = 3.0
STALLED_S = 600.0
"""Silence outside of steps that counts as a hang: an evaluation, a checkpoint, a first step."""


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
