"""Stop of a run from another OS process: a notebook, or a script that watches."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from assay.core import lease as leases
from assay.core.errors import InputError
from assay.core.job import QUEUE_JOB


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
