"""Journal of this machine's jobs and device leases: one SQLite file, the only state of the queue.

Any number of processes read and write it at once. A device and slot are a primary key, so that no
two holders can have the same. What is running is known from the file alone: a dispatcher that
starts after the death of another one continues from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import InputError, RecordError
from assay.core.job import Job, JobSpec, JobState, JobStatus, boot_ns
from assay.formats.json_codec import dumps
from assay.store.device_leases import (
    Choose,
    DeviceLease,
    DeviceSlot,
    LeaseHolder,
    QueueDevice,
    RunningJob,
    holder_of,
)
from assay.store.job_tables import (
    IN_LINE,
    SCHEMA,
    STATUS_COLUMNS,
    TABLES,
    job_from_row,
)

QUEUE_DIR_VARIABLE = "ASSAY_QUEUE_DIR"
FILE_NAME = "queue.sqlite"
_BUSY_S = 20.0


def queue_dir() -> Path:
    """Return the folder of this machine's queue: ASSAY_QUEUE_DIR, else in the user's state."""
    given = os.environ.get(QUEUE_DIR_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return user_state_path("assay", appauthor=False) / "queue" / (platform.node() or "localhost")


def _refuse_others(folder: Path) -> None:
    """Raise InputError for a queue that another user may write: its commands run as this one."""
    status = folder.stat()
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid != os.geteuid():
        why = "belongs to another user"
    elif status.st_mode & stat.S_IWOTH:
        why = "can be written by every user"
    else:
        return
    raise InputError(
        f"The folder of the queue {why}, whose jobs would run as yours.",
        where=str(folder),
        fix=f"chmod 700 it, or set {QUEUE_DIR_VARIABLE} to a folder of your own",
    )


def _wish_of(spec: JobSpec) -> str:
    """Return a text that is equal for jobs which the same free devices suit."""
    return dumps([spec.device, spec.devices, spec.per_device, spec.memory_bytes])


class JobJournal:
    """Open journal. One object belongs to one thread; RecordError for a disk that refuses."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or queue_dir()
        with self._explain_errors():
            make_directory(self.folder, PRIVATE)
            _refuse_others(self.folder)
            # Transactions are begun by hand: those of sqlite3 begin too late for a claim.
            self._database = sqlite3.connect(
                self.folder / FILE_NAME, timeout=_BUSY_S, isolation_level=None
            )
            self._database.execute("PRAGMA journal_mode = WAL")
            # With WAL a power failure loses the newest commits at worst, never the file.
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._make_tables()

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> JobJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------- submission

    def submit(self, specs: Iterable[JobSpec]) -> list[int]:
        """Put jobs at the end of the line, all or none; return their ids."""
        ids: list[int] = []
        with self._transaction() as database:
            for spec in specs:
                row = database.execute(
                    "INSERT INTO jobs (spec, wish, state, priority, held, cancel, attempt, devices,"
                    " pid, process_start, place, created_ns, started_ns, started_boot_ns, ended_ns,"
                    " signal, failure, reason, run) VALUES"
                    " (?, ?, 'waiting', ?, 0, 0, 0, '[]', 0, '', '', ?, 0, 0, 0, 0, '', '', '')",
                    (dumps(spec), _wish_of(spec), spec.priority, time.time_ns()),
                )
                assert row.lastrowid is not None
                ids.append(row.lastrowid)
        return ids

    def request_cancel(self, ids: Iterable[int]) -> None:
        """Cancel waiting jobs at once, and ask the dispatcher to end running ones."""
        with self._transaction() as database:
            for job in ids:
                self._refuse_missing(job)
                database.execute("UPDATE jobs SET cancel = 1 WHERE id = ?", (job,))
                database.execute(
                    "UPDATE jobs SET state = 'cancelled', ended_ns = ?"
                    " WHERE id = ? AND state = 'waiting'",
                    (time.time_ns(), job),
                )

    def hold(self, ids: Iterable[int], *, held: bool) -> None:
        """Keep waiting jobs from being started, or let them start again."""
        with self._transaction() as database:
            for job in ids:
                self._refuse_missing(job)
                database.execute("UPDATE jobs SET held = ? WHERE id = ?", (int(held), job))

    @property
    def is_paused(self) -> bool:
        """True while no job of the queue may start."""
        with self._explain_errors():
            row = self._database.execute(
                "SELECT value FROM settings WHERE name = 'paused'"
            ).fetchone()
        return row is not None and bool(row[0])

    def pause(self, *, paused: bool) -> None:
        """Keep the whole queue from starting jobs, or let it start them again."""
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO settings VALUES ('paused', ?)", (int(paused),))

    # ------------------------------------------------------------------------------------ looking

    def job(self, job: int) -> Job:
        """Return one job; InputError for an id that nobody has."""
        found = self._select("WHERE id = ?", job)
        if not found:
            raise InputError(f"There is no job {job}.", fix="assay queue ls --all")
        return found[0]

    def jobs(self, states: Sequence[JobState] = (), *, last: int = -1) -> list[Job]:
        """Return jobs in these states (none: all) in the order of their ids; `last`: the newest."""
        marks = ", ".join("?" * len(states))
        where = f"WHERE state IN ({marks})" if states else ""
        # The inner query reads the index alone; rows are long, with the environment of a job each.
        newest = f"SELECT id FROM jobs {where} ORDER BY id DESC LIMIT ?"
        return self._select(f"WHERE id IN ({newest}) ORDER BY id", *states, last)

    def last_ended(self, most: int) -> list[Job]:
        """Return the jobs that ended last, the newest end first."""
        where = "WHERE state IN ('finished', 'failed', 'cancelled')"
        return self._select(f"{where} ORDER BY ended_ns DESC, id DESC LIMIT ?", most)

    def line(self, *, first: int = -1) -> list[Job]:
        """Return waiting jobs in the order in which they would start; `first`: so many."""
        return self._select(f"WHERE state = 'waiting' {IN_LINE} LIMIT ?", first)

    def held_jobs(self) -> set[int]:
        """Return ids of waiting jobs that are held back."""
        with self._explain_errors():
            rows = self._database.execute(
                "SELECT id FROM jobs WHERE state = 'waiting' AND held"
            ).fetchall()
        return {row[0] for row in rows}

    def counts(self) -> dict[JobState, int]:
        """Return the number of jobs in each state."""
        with self._explain_errors():
            rows = self._database.execute(
                "SELECT state, count(*) FROM jobs GROUP BY state"
            ).fetchall()
        return dict(rows)

    def codes_in_use(self, project: str) -> set[str]:
        """Return the snapshots that waiting and running jobs of a project need."""
        with self._explain_errors():
            rows = self._database.execute(
                "SELECT DISTINCT json_extract(spec, '$.code') FROM jobs WHERE state IN ('waiting',"
                " 'running') AND json_extract(spec, '$.project') = ?",
                (project,),
            ).fetchall()
        return {row[0] for row in rows if row[0]}

    def leases(self) -> list[DeviceLease]:
        """Return all leases, those of dead holders included."""
        with self._explain_errors():
            rows = self._database.execute(
                "SELECT device, slot, name, shared_by, memory_bytes, job, pid, process_start,"
                " place, since_ns FROM leases"
            ).fetchall()
        return [
            DeviceLease(DeviceSlot(*row[:5]), row[5], LeaseHolder(*row[6:9]), row[9])
            for row in rows
        ]

    def devices(self) -> list[QueueDevice]:
        """Return the devices of the last dispatcher; none before the first."""
        with self._explain_errors():
            row = self._database.execute(
                "SELECT value FROM settings WHERE name = 'devices'"
            ).fetchone()
        return [QueueDevice(**each) for each in json.loads(row[0])] if row is not None else []

    def set_devices(self, devices: Iterable[QueueDevice]) -> None:
        """Write down the devices that jobs may get."""
        text = json.dumps([each._asdict() for each in devices])
        with self._transaction() as database:
            database.execute("INSERT OR REPLACE INTO settings VALUES ('devices', ?)", (text,))

    def version(self) -> int:
        """Return a number that changes when another process has written."""
        with self._explain_errors():
            return int(self._database.execute("PRAGMA data_version").fetchone()[0])

    # -------------------------------------------------------------------------------- dispatching

    def startable(self) -> list[Job]:
        """Return the first waiting job of those that wish for the same devices, for each wish.

        They are in line. None while the queue is paused.
        """
        if self.is_paused:
            return []
        first = (
            f"SELECT id, row_number() OVER (PARTITION BY wish {IN_LINE}) AS place FROM jobs"
            " WHERE state = 'waiting' AND NOT held"
        )
        return self._select(f"WHERE id IN (SELECT id FROM ({first}) WHERE place = 1) {IN_LINE}")

    def running(self) -> list[RunningJob]:
        """Return running jobs with their holders."""
        with self._explain_errors():
            rows = self._database.execute(
                f"SELECT place, cancel, started_boot_ns, id, spec, {STATUS_COLUMNS} FROM jobs"
                " WHERE state = 'running'"
            ).fetchall()
        found = [(row, job_from_row(row[3:])) for row in rows]
        return [
            RunningJob(
                job=job,
                holder=LeaseHolder(job.status.pid, job.status.process_start, row[0]),
                is_cancelled=bool(row[1]),
                started_boot_ns=row[2],
            )
            for row, job in found
        ]

    def claim(self, job: int, choose: Choose) -> Sequence[DeviceSlot] | None:
        """Turn a waiting job into a running one that holds slots, for this process at first.

        Return the slots, or None when the job waits no longer or nothing suitable is free.
        """
        me = holder_of(os.getpid())
        with self._transaction() as database:
            slots = self._lease(choose, job, me)
            if slots is None:
                return None
            names = json.dumps([slot.name for slot in slots])
            changed = database.execute(
                "UPDATE jobs SET state = 'running', attempt = attempt + 1, devices = ?, pid = 0,"
                " process_start = '', place = ?, started_ns = ?, started_boot_ns = ?, ended_ns = 0,"
                " seconds = NULL, exit_code = NULL, signal = 0, failure = '', reason = ''"
                " WHERE id = ? AND state = 'waiting' AND NOT held",
                (names, me.place, time.time_ns(), boot_ns(), job),
            )
            if not changed.rowcount:
                database.execute("ROLLBACK")
                return None
            return slots

    def begin(self, job: int, holder: LeaseHolder) -> None:
        """Hand a claimed job and its leases over to the OS process that runs it."""
        with self._transaction() as database:
            database.execute(
                "UPDATE jobs SET pid = ?, process_start = ?, place = ? WHERE id = ?",
                (*holder, job),
            )
            database.execute(
                "UPDATE leases SET pid = ?, process_start = ?, place = ? WHERE job = ?",
                (*holder, job),
            )

    def unclaim(self, job: int) -> None:
        """Put a job back in line whose command has never begun; the attempt does not count."""
        with self._transaction() as database:
            database.execute(
                "UPDATE jobs SET state = 'waiting', attempt = attempt - 1, pid = 0,"
                " process_start = '', started_ns = 0 WHERE id = ? AND state = 'running'",
                (job,),
            )
            database.execute("DELETE FROM leases WHERE job = ?", (job,))

    def set_stalled(self, job: int, reason: str) -> None:
        """Write why a running job stands still, "" when it moves again."""
        with self._transaction() as database:
            database.execute(
                "UPDATE jobs SET reason = ? WHERE id = ? AND state = 'running'", (reason, job)
            )

    def end(self, job: int, status: JobStatus) -> None:
        """Write how an attempt ended and free its devices; the state "waiting" is a retry."""
        with self._transaction() as database:
            database.execute(
                "UPDATE jobs SET state = ?, ended_ns = ?, seconds = ?, exit_code = ?, signal = ?,"
                " failure = ?, reason = ?, run = ? WHERE id = ? AND state = 'running'",
                (
                    status.state,
                    status.ended_ns,
                    status.seconds,
                    status.exit_code,
                    status.signal,
                    status.failure,
                    status.reason,
                    status.run,
                    job,
                ),
            )
            database.execute("DELETE FROM leases WHERE job = ?", (job,))

    def take(self, choose: Choose, holder: LeaseHolder) -> Sequence[DeviceSlot] | None:
        """Lease slots of devices for a run outside of the queue; None while there are too few."""
        with self._transaction():
            return self._lease(choose, 0, holder)

    def hand_over(self, slots: Sequence[DeviceSlot], holder: LeaseHolder) -> None:
        """Make another OS process the holder of leases."""
        with self._transaction() as database:
            database.executemany(
                "UPDATE leases SET pid = ?, process_start = ?, place = ?"
                " WHERE device = ? AND slot = ?",
                [(*holder, slot.key, slot.number) for slot in slots],
            )

    def give_back(self, slots: Sequence[DeviceSlot], holder: LeaseHolder) -> None:
        """Free slots that `holder` has."""
        with self._transaction() as database:
            database.executemany(
                "DELETE FROM leases WHERE device = ? AND slot = ? AND pid = ?"
                " AND process_start = ? AND place = ?",
                [(slot.key, slot.number, *holder) for slot in slots],
            )

    def free_dead(self, is_alive: Callable[[LeaseHolder], bool]) -> None:
        """Free the leases whose holder is dead, whoever it was."""
        dead = [lease for lease in self.leases() if not is_alive(lease.holder)]
        for lease in dead:
            self.give_back([lease.slot], lease.holder)

    # ----------------------------------------------------------------------------------- database

    def _lease(self, choose: Choose, job: int, holder: LeaseHolder) -> Sequence[DeviceSlot] | None:
        """Insert the leases of chosen slots; the open transaction keeps everybody else out."""
        slots = choose(self.leases())
        if slots is None:
            return None
        self._database.executemany(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*slot, job, *holder, time.time_ns()) for slot in slots],
        )
        return slots

    def _refuse_missing(self, job: int) -> None:
        if self._database.execute("SELECT 1 FROM jobs WHERE id = ?", (job,)).fetchone() is None:
            raise InputError(f"There is no job {job}.", fix="assay queue ls --all")

    def _select(self, clauses: str, *values: Any) -> list[Job]:
        with self._explain_errors():
            rows = self._database.execute(
                f"SELECT id, spec, {STATUS_COLUMNS} FROM jobs {clauses}", values
            ).fetchall()
        return [job_from_row(row) for row in rows]

    def _make_tables(self) -> None:
        with self._transaction() as database:
            version = int(database.execute("PRAGMA user_version").fetchone()[0])
            if version not in (0, SCHEMA):
                raise RecordError(
                    "The queue was written by another version of assay.",
                    where=str(self.folder),
                    fix="use that version, or set ASSAY_QUEUE_DIR to another folder",
                )
            for statement in () if version else TABLES:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock; commit at the end, undo when something is raised."""
        with self._explain_errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise
            if self._database.in_transaction:
                self._database.execute("COMMIT")

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise RecordError(
                f"The queue cannot be read or written: {error}.",
                where=str(self.folder / FILE_NAME),
                fix="look whether the disk is full or read-only",
            ) from error
