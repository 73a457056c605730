"""Status of a run: as written, or derived from its lease when it never wrote an end."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path

from assay.core import lease as leases
from assay.core import run_file
from assay.core.errors import RecordError
from assay.core.lease import Lease
from assay.core.run_file import RunFile, Status, WrittenStatus


@dataclass(frozen=True, slots=True)
class RunState:
    """Status of a run, and when it was last heard of (unix ns), 0 where unknown or not needed."""

    status: Status
    heard_ns: int = 0


def state_of(folder: Path, written: WrittenStatus, lease: Lease | None) -> RunState:
    """Return the state of the run in `folder` with written status `written` and `lease`.

    A run that wrote no end is `killed` when its process is known to be gone, and `unknown` when it
    is silent and its host is another one: from here nobody can tell.
    """
    if written != "running":
        return RunState(written)
    if lease is None:
        return _without_lease(folder)
    now_ns = time.time_ns()
    lease_ns = leases.written_ns(folder)
    heard_ns = max(
        lease.beat_ns if lease.beat_ns <= now_ns + leases.SILENT_NS else lease_ns,
        _written_ns(folder),
    )
    match leases.liveness(lease, written_ns=lease_ns, now_ns=now_ns):
        case "alive":
            return RunState("running", heard_ns)
        case "unknown":
            return RunState("unknown", heard_ns)
        case "dead":
            # A run that ends writes its end, then gives back the lease: with the lease gone, look
            # again.
            gone = not (folder / leases.FILE_NAME).exists()
            return _without_lease(folder) if gone else RunState("killed", heard_ns)


def seconds_of(ended_s: float, open_since_ns: int | None, state: RunState, now_ns: int) -> float:
    """Return the duration of all attempts; an open one lasts until it was last heard of."""
    if open_since_ns is None:
        return ended_s
    until_ns = now_ns if state.status == "running" else state.heard_ns
    return ended_s + max(0, until_ns - open_since_ns) / 1e9


def _without_lease(folder: Path) -> RunState:
    run = _read(folder)
    if run is None or run.status != "running":
        return RunState(run.status if run is not None else "unknown")
    is_ours = bool(run.attempts) and run.newest.host == platform.node()
    return RunState("killed" if is_ours else "unknown", _written_ns(folder))


def _read(folder: Path) -> RunFile | None:
    try:
        return run_file.read(folder)
    except (FileNotFoundError, RecordError):
        return None


def _written_ns(folder: Path) -> int:
    """When something was last written to the curves or the log."""
    times = [0]
    for name in ("metrics.bin", "log.txt", "events.jsonl"):
        try:
            times.append((folder / name).stat().st_mtime_ns)
        except OSError:
            continue
    return max(times)
