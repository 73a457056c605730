"""Queue of this machine as a reader sees it: devices as lanes, the line, and what has ended."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.core.errors import AssayError, RecordError
from assay.core.job import QUEUE_JOB, Job, JobState
from assay.core.regular_file import file_size, read_part
from assay.query.run import RunView
from assay.query.run_row import RunRow
from assay.store.device_leases import DeviceLease, QueueDevice
from assay.store.job_journal import FILE_NAME, JobJournal, queue_dir
from assay.store.queue_files import dispatcher_pid, job_folder, job_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One device with its leases, in the order of its slots."""

    device: QueueDevice
    leases: Sequence[DeviceLease] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """Queue at one moment; `jobs` are those that run, by id.

    `waiting` and `ended` are the first and the last so many, `counts` counts all. `dispatcher` is
    the pid of the dispatcher, 0 without one.
    """

    is_paused: bool = False
    dispatcher: int = 0
    counts: Mapping[JobState, int] = field(default_factory=dict)
    lanes: Sequence[Lane] = ()
    running: Mapping[int, Job] = field(default_factory=dict)
    stopping: frozenset[int] = frozenset()
    waiting: Sequence[Job] = ()
    held: frozenset[int] = frozenset()
    ended: Sequence[Job] = ()


def has_queue(folder: Path | None = None) -> bool:
    """Return True if this user has ever queued a job on this machine; nothing is made by asking."""
    return ((folder or queue_dir()) / FILE_NAME).is_file()


def queue_counts(folder: Path | None = None) -> Mapping[JobState, int]:
    """Return the number of jobs in each state. RecordError for a journal that cannot be read."""
    if not has_queue(folder):
        return {}
    with JobJournal(folder) as journal:
        return journal.counts()


def queue_view(folder: Path | None = None, *, waiting: int = 200, ended: int = 50) -> QueueView:
    """Return the queue of this machine, or of a folder; an empty one where none was made.

    RecordError for a journal that cannot be read.
    """
    if not has_queue(folder):
        return QueueView()
    with JobJournal(folder) as journal:
        running = journal.running()
        return QueueView(
            is_paused=journal.is_paused,
            dispatcher=dispatcher_pid(journal.folder),
            counts=journal.counts(),
            lanes=_lanes(journal.devices(), journal.leases()),
            running={each.job.id: each.job for each in running},
            stopping=frozenset(each.job.id for each in running if each.is_cancelled),
            waiting=journal.line(first=waiting),
            held=frozenset(journal.held_jobs()),
            ended=journal.last_ended(ended),
        )


def job_text(job: int, start: int, end: int, folder: Path | None = None) -> bytes:
    """Return bytes of what a job has printed; none where there is nothing.

    InputError for a job that is not there, RecordError when its log cannot be read.
    """
    with JobJournal(folder) as journal:
        journal.job(job)
        log = job_log(job_folder(journal.folder, job))
    try:
        return read_part(log, start, end)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RecordError(
            f"The log of job {job} cannot be read: {error.strerror}.", where=str(log)
        ) from error


def log_bytes(job: int, folder: Path | None = None) -> int:
    """Return how much a job has printed so far."""
    return file_size(job_log(job_folder(folder or queue_dir(), job)))


def runs_of_jobs(open_runs: Sequence[RunRow]) -> dict[int, str]:
    """Return the runs that jobs of this machine write now, by job."""
    found = {}
    prefix = f"{QUEUE_JOB}{platform.node()}:"
    for row in open_runs:
        with contextlib.suppress(AssayError, OSError):  # a record that cannot be read names none
            job = RunView(row.path).file.job
            number = job.removeprefix(prefix)
            if job.startswith(prefix) and number.isdecimal():
                found[int(number)] = row.id
    return found


class QueueChanges:
    """Watch over the queue for one thread, with an open journal as long as there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or queue_dir()
        self._journal: JobJournal | None = None
        self._seen: tuple[int, int] | None = None
        self._running: list[int] = []
        self._sizes: dict[int, int] = {}

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def look(self) -> tuple[bool, dict[int, int]]:
        """Return whether jobs have changed since the last look, and longer logs: size by job.

        RecordError for a journal that cannot be read.
        """
        if self._journal is None:
            if not has_queue(self._folder):
                return False, {}
            self._journal = JobJournal(self._folder)
        now = self._journal.version(), dispatcher_pid(self._folder)
        has_changed = now != self._seen
        if has_changed:
            before, self._seen = self._running, now
            self._running = [each.job.id for each in self._journal.running()]
            # A job that has just ended may have printed its last lines since.
            watched = dict.fromkeys([*before, *self._running])
        else:
            watched = dict.fromkeys(self._running)
        logs = {}
        for job in watched:
            size = file_size(job_log(job_folder(self._folder, job)))
            if size != self._sizes.get(job):
                logs[job] = self._sizes[job] = size
        return has_changed, logs


def _lanes(devices: Sequence[QueueDevice], leases: Sequence[DeviceLease]) -> list[Lane]:
    """Return a lane for each device that the dispatcher has or somebody holds."""
    known = {device.key: device for device in devices}
    for lease in leases:
        slot = lease.slot
        known.setdefault(slot.key, QueueDevice(slot.key, slot.name, slot.shared_by))
    return [
        Lane(
            device=device,
            leases=sorted(
                (lease for lease in leases if lease.slot.key == key),
                key=lambda lease: lease.slot.number,
            ),
        )
        for key, device in known.items()
    ]
