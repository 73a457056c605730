"""Status of a run as a reader derives it, and how a run is stopped."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
from dataclasses import dataclass
from pathlib import Path

from assay.core.errors import InputError, RecordError
from assay.core.job import QUEUE_JOB
from assay.formats import lease as leases
from assay.formats import run_file
from assay.formats.lease import Lease
from assay.formats.run_file import RunFile, Status, WrittenStatus
from assay.store.last_signs import heard_ns, open_seconds


@dataclass(frozen=True, slots=True)
class RunState:
    """Status of a run; of an open one its lease, and when it was last heard of.

    `heard_ns` is unix ns, 0 where unknown or not needed.
    """

    status: Status
    heard_ns: int = 0
    lease: Lease | None = None


def state_of(folder: Path, written: WrittenStatus, lease: Lease | None) -> RunState:
    """Return the state of the run in `folder` with written status `written` and `lease`.

    A run that wrote no end is `killed` when its process is known to be gone, and `unknown` when it
    is silent and its host is another one: from here nobody can tell.
    """
    if written != "running":
        return RunState(written)
    if lease is None:
        return _without_lease(folder)
    heard = heard_ns(folder, lease)
    match leases.liveness(lease, written_ns=leases.written_ns(folder)):
        case "alive":
            return RunState("running", heard, lease)
        case "unknown":
            return RunState("unknown", heard, lease)
        case "dead":
            # A run that ends writes its end, then gives back the lease: with the lease gone, look
            # again.
            gone = not (folder / leases.FILE_NAME).exists()
            return _without_lease(folder) if gone else RunState("killed", heard, lease)


def seconds_of(started_ns: int, state: RunState, now_ns: int) -> float:
    """Return how long an attempt has run that wrote no end: until now, or until its last sign."""
    is_alive = state.status == "running"
    until_ns = now_ns if is_alive else state.heard_ns
    return open_seconds(state.lease, started_ns, until_ns, is_alive=is_alive)


def _without_lease(folder: Path) -> RunState:
    run = _read(folder)
    if run is None or run.status != "running":
        return RunState(run.status if run is not None else "unknown")
    is_ours = bool(run.attempts) and run.newest.host == platform.node()
    return RunState("killed" if is_ours else "unknown", heard_ns(folder, None))


def _read(folder: Path) -> RunFile | None:
    try:
        return run_file.read(folder)
    except (FileNotFoundError, RecordError):
        return None


def stop_run(folder: Path, *, run_id: str, job: str) -> None:
    """Send SIGTERM to the OS process that writes the run in a folder; nothing if none does.

    InputError for a run of this process, of a job, or of another machine or user.
    """
    lease = leases.read(folder)
    if lease is None or leases.liveness(lease) == "dead":
        return
    _refuse_job(run_id, job)
    if lease.place != leases.this_place():
        raise InputError(
            f"The run {run_id} is running on {lease.host}.", fix="stop it on that machine"
        )
    if lease.pid == os.getpid():
        raise InputError(
            f"The run {run_id} is of this process.",
            fix="its `finish` ends it; Ctrl-C, or an interrupt of the kernel, stops a training",
        )
    try:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(lease.pid, signal.SIGTERM)
    except PermissionError:
        raise InputError(
            f"The run {run_id} is of another user: process {lease.pid}.", fix="ask them to stop it"
        ) from None


def _refuse_job(run_id: str, job: str) -> None:
    """Raise InputError for a run of a job, which the scheduler would start again."""
    if job:
        number = job.rpartition(":")[2]
        how = f"assay queue rm {number}" if job.startswith(QUEUE_JOB) else "cancel that job"
        raise InputError(f"The run {run_id} is of the job {job}.", fix=how)
