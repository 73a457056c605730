"""Tables of the queue in SQLite, and a row as a job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from assay.core.job import Job, JobSpec, JobStatus, boot_ns
from assay.formats.json_codec import dataclass_from
from assay.formats.lease import this_place

SCHEMA = 3

TABLES = (
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, spec, wish, state, priority, held,"
    " cancel, attempt, devices, pid, process_start, place, created_ns, started_ns, started_boot_ns,"
    " ended_ns, seconds, exit_code, signal, failure, reason, run)",
    "CREATE INDEX jobs_in_line ON jobs (state, priority DESC, id)",
    "CREATE INDEX jobs_by_wish ON jobs (state, held, wish, priority DESC, id)",
    "CREATE TABLE leases (device, slot, name, shared_by, memory_bytes, job, pid, process_start,"
    " place, since_ns, PRIMARY KEY (device, slot)) WITHOUT ROWID",
    "CREATE TABLE settings (name PRIMARY KEY, value) WITHOUT ROWID",
)


STATUS_COLUMNS = (
    "state, attempt, devices, pid, process_start, created_ns, started_ns, ended_ns, exit_code,"
    " signal, failure, reason, run, seconds, place, started_boot_ns"
)


IN_LINE = "ORDER BY priority DESC, id"


def job_from_row(row: Sequence[Any]) -> Job:
    """Return the job of a row: id, spec, and `STATUS_COLUMNS`."""
    number, spec, state, attempt, devices, *rest = row
    pid, start, created, started, ended, code, signal, failure, reason, run, seconds, *boot = rest
    status = JobStatus(
        state=state,
        attempt=attempt,
        devices=tuple(json.loads(devices)) if devices != "[]" else (),
        pid=pid,
        process_start=start,
        created_ns=created,
        started_ns=started,
        ended_ns=ended,
        seconds=_seconds_so_far(*boot) if state == "running" else seconds,
        exit_code=code,
        signal=signal,
        failure=failure,
        reason=reason,
        run=run,
    )
    return Job(id=number, spec=spec_of(spec), status=status)


def _seconds_so_far(place: str, started_boot_ns: int) -> float | None:
    """Return how long a running job has run; None if the machine was restarted meanwhile."""
    return max(0, boot_ns() - started_boot_ns) / 1e9 if place == this_place() else None


@lru_cache(maxsize=1024)
def spec_of(text: str) -> JobSpec:
    """Return the spec of a row; a dispatcher reads those of waiting jobs again and again."""
    return dataclass_from(JobSpec, json.loads(text))
