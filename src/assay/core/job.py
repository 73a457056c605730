"""Job: a frozen command, config and code, its place and state in a queue, and how it failed."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from assay.core.errors import InputError

JobState = Literal["waiting", "running", "finished", "failed", "cancelled"]
"""States of a job. The last three are ends; a retry goes from "running" back to "waiting"."""

ENDED: frozenset[JobState] = frozenset({"finished", "failed", "cancelled"})

FailureClass = Literal[
    "config", "data", "out-of-memory", "nan", "hang", "killed", "preempted", "exception"
]
"""Cause of a failure, coarse enough to decide on a retry and to name in a message."""

FAILURES: tuple[FailureClass, ...] = get_args(FailureClass)

JOB_VARIABLE = "ASSAY_JOB"
ATTEMPT_VARIABLE = "ASSAY_JOB_ATTEMPT"
"""Environment variables of a job: host and id as `node3:12`, and the number of the attempt."""

FOLDER_VARIABLE = "ASSAY_JOB_FOLDER"
"""Environment variable of a job: the folder in which it leaves its report."""

PARENT_VARIABLE = "ASSAY_JOB_PARENT"
"""Environment variable: pid of the parent with which a run is killed."""

QUEUE_JOB = "queue "
"""Beginning of a job of the local queue in a record: `queue node3:12`."""

JOB_DEVICES_VARIABLE = "ASSAY_JOB_DEVICES"
"""Environment variable of a job: the names of its devices as people know them."""

TORCH_DEVICES_VARIABLE = "ASSAY_JOB_TORCH_DEVICES"
"""Set for a job: the names by which torch knows its devices; "" leaves the choice to the run."""

TRANSIENT: tuple[FailureClass, ...] = ("hang", "killed", "preempted")
"""Failures that say nothing about the config: a job with attempts left is tried again."""


def queue_job(variables: Mapping[str, str]) -> str:
    """Return the job of the local queue in which a process runs, as records name it, or ""."""
    job = variables.get(JOB_VARIABLE, "")
    return f"{QUEUE_JOB}{job}" if job else ""


def boot_ns() -> int:
    """Return nanoseconds since the boot; a change of the wall clock does not move it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Submitted part of a job; nothing in it changes afterwards.

    `command` runs in `cwd` with `environment` and nothing else of the submitting shell. `device` is
    "auto", "cpu", or devices to choose from, such as "cuda:0,1"; the job gets `devices` of them,
    each shared by at most `per_device` jobs (0: a GPU by one, the CPU by one for four cores).
    `memory_bytes` is the forecast for one device, 0 if unknown. A job that stands still for longer
    than `hang_limit_s` is ended; None: people are told, and it stays. `title`, `config` (path),
    `project` (root), `code` (digest of the snapshot) and `group` are for people and filters.
    """

    command: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    config: str = ""
    project: str = ""
    group: str = ""
    code: str = ""
    device: str = "auto"
    devices: int = 1
    per_device: int = 0
    memory_bytes: int = 0
    priority: int = 0
    max_attempts: int = 1
    retry: tuple[FailureClass, ...] = TRANSIENT
    time_limit_s: float | None = None
    hang_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Changing part of a job. Times are Unix nanoseconds, 0 for not yet.

    `seconds` is how long the last attempt has run, by the clock of the boot; None where nobody
    knows.
    `exit_code` and `signal` are those of the last attempt, `run` the id of the run it recorded,
    `devices` the names of those it holds or held. `failure` is "" unless the state is "failed".
    `reason` says why it ended, or why it stands still while it is "running".
    """

    state: JobState = "waiting"
    attempt: int = 0
    devices: tuple[str, ...] = ()
    pid: int = 0
    process_start: str = ""
    created_ns: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    seconds: float | None = None
    exit_code: int | None = None
    signal: int = 0
    failure: FailureClass | Literal[""] = ""
    reason: str = ""
    run: str = ""

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def duration_s(self) -> float | None:
        """Seconds that the last attempt has run; by the wall clock where no other was kept."""
        if self.seconds is not None:
            return self.seconds
        if not self.started_ns or not self.ended_ns:
            return None
        return max(0, self.ended_ns - self.started_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of a queue; ids count up from 1 in the order of submission."""

    id: int
    spec: JobSpec
    status: JobStatus = field(default_factory=JobStatus)


_LOADING = ("while loading ", "in loader worker ")
"""Beginnings of the notes that the loader adds to an error of a data set."""
_PATTERNS: tuple[tuple[FailureClass, str], ...] = (
    ("out-of-memory", r"out of memory|OutOfMemoryError|\bMemoryError\b"),
    ("nan", r"NonFiniteError|is not finite|non-finite"),
    ("data", rf"\bWorker(Died)?Error\b|^\s*({'|'.join(_LOADING)})"),
)
_EXCEPTIONS: tuple[tuple[FailureClass, frozenset[str]], ...] = (
    ("out-of-memory", frozenset({"OutOfMemoryError", "MemoryError"})),
    ("nan", frozenset({"NonFiniteError"})),
    ("data", frozenset({"WorkerError"})),
)
_PREEMPTING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def classify(exit_code: int | None, signal_number: int, last_lines: str) -> FailureClass:
    """Return the class of a failed attempt.

    A signal decides first, then the error that was printed, then the exit code.

    >>> classify(None, 9, ""), classify(2, 0, "error: ..."), classify(3, 0, "")
    ('killed', 'config', 'exception')
    """
    if signal_number in _PREEMPTING:
        return "preempted"
    if signal_number:
        return "killed"
    if exit_code is not None and exit_code - 128 in _PREEMPTING:
        return "preempted"
    for failure, pattern in _PATTERNS:
        if re.search(pattern, last_lines, re.IGNORECASE | re.MULTILINE):
            return failure
    return "config" if exit_code == InputError.exit_code else "exception"


def failure_of(error: BaseException) -> FailureClass:
    """Return the class of a failure from the exception that ended a run.

    Exceptions of the engine are known by name: nothing here may import torch.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    for failure, known in _EXCEPTIONS:
        if names & known:
            return failure
    if any(note.startswith(_LOADING) for note in getattr(error, "__notes__", ())):
        return "data"
    return "config" if isinstance(error, InputError) else "exception"


def describe_end(exit_code: int | None, signal_number: int) -> str:
    """Return the end of an OS process in words: `killed by SIGKILL`, `exit code 3`."""
    if signal_number:
        try:
            name = signal.Signals(signal_number).name
        except ValueError:
            name = f"signal {signal_number}"
        return f"killed by {name}"
    return f"exit code {exit_code}"
