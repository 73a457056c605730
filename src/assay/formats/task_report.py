"""Report that another OS process of assay leaves of its task: how it ended, and why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from assay.core.facts import EndStatus
from assay.core.job import FailureClass
from assay.formats.json_codec import read_json, write_json
from assay.formats.rehearsal import Rehearsal

FORMAT = 1
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """End of a task: the run that it recorded, how that ended, and why it failed.

    `status` is that of the run, "" for an OS process that has left no report. `reason` is the first
    line of the error, `error` its whole text, `traceback` its lines if it is none of assay's own.
    `end_reason` says why the run ended, `note` is for the person. `test` is the report of the test
    that followed the run. `follows`: the error came of the end of another rank. `signal` ended the
    run, 0 for none; `ended_s` is the time of the end on this machine's monotonic clock.
    """

    format: int = FORMAT
    run: str = ""
    record_dir: str = ""
    status: EndStatus | Literal[""] = ""
    exit_code: int = 0
    value: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    failure: FailureClass | Literal[""] = ""
    reason: str = ""
    error: str = ""
    error_type: str = ""
    traceback: str = ""
    end_reason: str = ""
    note: str = ""
    test: TaskReport | None = None
    rehearsal: Rehearsal | None = None
    follows: bool = False
    signal: int = 0
    ended_s: float = 0.0


def report_file(folder: Path, attempt: int = 1) -> Path:
    """Return the file for the report of an attempt; it may not exist."""
    return folder / f"result-{attempt}.json"


def read_report(file: Path) -> TaskReport:
    """Read a report. FileNotFoundError if there is none, RecordError if it is damaged."""
    return read_json(file, TaskReport, version=FORMAT, limit=_MAX_BYTES)


def write_report(file: Path, report: TaskReport) -> None:
    """Write a report whole or not at all: a reader may come at any moment."""
    write_json(file, report, durable=False)
