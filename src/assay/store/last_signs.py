"""Last signs of life of a run that wrote no end: when it was heard of, and how long it ran."""

from __future__ import annotations

import time
from pathlib import Path

from assay.core.regular_file import mtime_ns_of
from assay.formats import lease as leases
from assay.formats.lease import Lease
from assay.formats.metrics_file import metrics_state

_WRITTEN = ("log.txt", "events.jsonl")


def heard_ns(folder: Path, lease: Lease | None) -> int:
    """Return when a run last beat or wrote, by the wall clock; 0 where nothing tells."""
    beat_ns = 0
    if lease is not None:
        is_past = lease.beat_ns <= time.time_ns() + leases.SILENT_NS
        beat_ns = lease.beat_ns if is_past else leases.written_ns(folder)
    _, logged_ns = metrics_state(folder / "metrics")
    return max(beat_ns, logged_ns, *(mtime_ns_of(folder / name) for name in _WRITTEN))


def open_seconds(
    lease: Lease | None, started_ns: int, until_ns: int, *, is_alive: bool = False
) -> float:
    """Return how long an attempt without an end ran until `until_ns`, a time of the wall clock.

    Up to the last beat that is what a clock says that nobody sets, and a process that is not alive
    can have written for no longer than until the next one. Without such a beat the wall clock
    counts.
    """
    if lease is not None and lease.steady_ns:
        until_ns = lease.ran_until_ns(until_ns, None if is_alive else leases.BEAT_NS)
    return max(0, until_ns - started_ns) / 1e9 if until_ns else 0.0
