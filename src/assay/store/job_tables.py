"""Tables of the queue in SQLite, and a row as a job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from assay.core.job import Job, JobSpec, JobStatus
from assay.core.json_codec import from_plain

SCHEMA = 1


TABLES = (
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, spec, state, priority, held, cancel,"
    " attempt, devices, pid, process_start, place, created_ns, started_ns, started_boot_ns,"
    " ended_ns, exit_code, signal, failure, reason, run)",
    "CREATE INDEX jobs_in_line ON jobs (state, priority DESC, id)",
    "CREATE TABLE waits (job, on_job, PRIMARY KEY (job, on_job)) WITHOUT ROWID",
    "CREATE TABLE leases (device, slot, name, shared_by, memory_bytes, job, pid, process_start,"
    " place, since_ns, PRIMARY KEY (device, slot)) WITHOUT ROWID",
    "CREATE TABLE settings (name PRIMARY KEY, value) WITHOUT ROWID",
)


STATUS_COLUMNS = (
    "state, attempt, devices, pid, process_start, created_ns, started_ns, ended_ns, exit_code,"
    " signal, failure, reason, run"
)


IN_LINE = "ORDER BY priority DESC, id"


BLOCKED = (
    "SELECT 1 FROM waits JOIN jobs AS other ON other.id = waits.on_job"
    " WHERE waits.job = jobs.id AND other.state != 'finished'"
)


LOST = (
    "SELECT waits.job FROM waits JOIN jobs AS other ON other.id = waits.on_job"
    " WHERE other.state IN ('failed', 'cancelled')"
)


HAS_LOST = f"EXISTS (SELECT 1 FROM jobs WHERE state = 'waiting' AND id IN ({LOST}))"


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row: id, spec, and the columns of `_STATUS`."""
    number, spec, state, attempt, devices, *rest = row
    pid, start, created, started, ended, code, signal, failure, reason, run = rest
    status = JobStatus(
        state=state,
        attempt=attempt,
        devices=tuple(json.loads(devices)) if devices != "[]" else (),
        pid=pid,
        process_start=start,
        created_ns=created,
        started_ns=started,
        ended_ns=ended,
        exit_code=code,
        signal=signal,
        failure=failure,
        reason=reason,
        run=run,
    )
    return Job(id=number, spec=spec_of(spec), status=status)


@lru_cache(maxsize=1024)
def spec_of(text: str) -> JobSpec:
    """Return the spec of a row; a dispatcher reads those of waiting jobs again and again."""
    return from_plain(JobSpec, json.loads(text))
