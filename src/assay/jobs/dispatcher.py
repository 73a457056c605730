"""Dispatcher: starts the jobs of this machine's queue on free devices, and writes how they end.

It keeps nothing in memory that the journal does not have. One that starts after another was killed
finds the running jobs there, and looks after them as if it had started them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from assay.core.directory import LinkedFolderError
from assay.core.errors import AssayError, InputError, RecordError
from assay.core.job import (
    JOB_DEVICES_VARIABLE,
    JOB_VARIABLE,
    QUEUE_JOB,
    FailureClass,
    Job,
    JobStatus,
    boot_ns,
    classify,
    describe_end,
)
from assay.core.processes import GRACE_S
from assay.core.regular_file import NotRegularFileError
from assay.core.signals import Signals, answering
from assay.formats.lease import this_place
from assay.jobs.devices import (
    Device,
    DevicePool,
    choose_slots,
    cpu_jobs,
    job_variables,
    this_machine,
)
from assay.jobs.job_folder import JobFolder
from assay.jobs.job_process import (
    ProcessEnd,
    ends_of,
    is_alive,
    is_job_suspended,
    is_supervised,
    read_end,
    send_signal,
    start_forked,
)
from assay.jobs.watch import start_watcher
from assay.query.find import run_of_job
from assay.query.run import RunView
from assay.query.standstill import standstill_of
from assay.store.device_leases import LeaseHolder, QueueDevice, RunningJob
from assay.store.job_journal import JobJournal
from assay.store.layout import find_project
from assay.store.queue_files import LOCK_NAME, hold_lock

_TICK_S = 0.05
_DEATH_TRIES, _DEATH_S = 20, 0.01
_ROUND_S = 1.0
_PROGRESS_S = 2.0
"""Seconds between two looks at whether jobs move."""
_TAIL_BYTES = 20_000
_NEWEST = 100
"""Records of a project among which that of a job is looked for."""

_log = logging.getLogger("assay.jobs")


@dataclass(frozen=True, slots=True)
class _EndRequest:
    """Signal that ends a job, with its time on the clock of the boot."""

    failure: FailureClass = "killed"
    cause: str = ""
    at_ns: int = field(default_factory=boot_ns)


class Dispatcher:
    """The one process of a machine that starts queued jobs. It owns the lock of the queue.

    `grace_s` is the time between SIGTERM and SIGKILL. Call it in an OS process without threads.
    """

    def __init__(
        self, journal: JobJournal, pool: DevicePool | None = None, *, grace_s: float = GRACE_S
    ) -> None:
        self._journal = journal
        self._pool = pool or this_machine()
        self._grace_s = grace_s
        self._requests: dict[int, _EndRequest] = {}
        self._stalled_ns: dict[int, int] = {}
        self._records: dict[int, RunView] = {}
        self._progress_ns = 0
        self._is_progress_due = False
        self._children: set[int] = set()
        self._has_stopped = False

    def run(self, *, until_empty: bool = False) -> None:
        """Dispatch until SIGTERM or SIGINT, or until nothing is left; running jobs go on.

        InputError when another dispatcher has the queue.
        """
        with _only_dispatcher(self._journal.folder), answering(self._stop):
            warned = ""
            self._journal.set_devices(self._devices())
            while not self._has_stopped:
                try:
                    self.round()
                    if until_empty and self._is_empty():
                        return
                    warned = ""
                    self._wait()
                # A full disk, or a lock of the journal: the jobs know nothing of it.
                except (RecordError, OSError) as error:
                    if str(error) != warned:
                        warned = str(error)
                        _log.warning("%s", warned)
                    time.sleep(_ROUND_S)

    def round(self) -> None:
        """Write the ends of jobs, end those that must end, free devices, start what can start."""
        self._reap()
        self._is_progress_due = boot_ns() - self._progress_ns > _PROGRESS_S * 1e9
        if self._is_progress_due:
            self._progress_ns = boot_ns()
        for running in self._journal.running():
            self._look_after(running)
        self._journal.free_dead(is_alive)
        self._check_disk()
        self._start_waiting()

    # ------------------------------------------------------------------------------------- ending

    def _look_after(self, running: RunningJob) -> None:
        """Write the end of a job that has ended; ask one to end that was cancelled or is late."""
        job, holder = running.job, running.holder
        folder = JobFolder.of(self._journal.folder, job.id)
        # In this order: a supervisor that is gone has written the end before.
        has_supervisor = is_supervised(holder)
        end = read_end(folder.exit_file(job.status.attempt), holder)
        if not holder.pid or (end is not None and end.not_begun):
            self._journal.unclaim(job.id)  # a dispatcher died before the command could begin
        elif end is None and has_supervisor:
            if self._is_progress_due:
                self._look_at_progress(running)
            self._look_at_limits(running)
        elif not has_supervisor and _has_died(holder):
            self._end(running, end or self._end_unseen(running))

    def _end_unseen(self, running: RunningJob) -> ProcessEnd:
        """Return the end of a job whose supervisor was killed, too."""
        if running.holder.place != this_place():
            return ProcessEnd(signal=signal.SIGKILL, error="the machine was restarted")
        return ProcessEnd(signal=signal.SIGKILL)

    def _look_at_limits(self, running: RunningJob) -> None:
        """End a job that was cancelled, is late, or has stood still for too long."""
        job = running.job
        limit_s = job.spec.time_limit_s
        hang_limit_s = job.spec.hang_limit_s
        now_ns = boot_ns()
        stalled_ns = self._stalled_ns.get(job.id, now_ns)
        if running.is_cancelled:
            self._ask_to_end(running, _EndRequest())
        elif limit_s is not None and now_ns - running.started_boot_ns > limit_s * 1e9:
            self._ask_to_end(running, _EndRequest("killed", f"time limit of {limit_s:g} s"))
        elif hang_limit_s is not None and now_ns - stalled_ns > hang_limit_s * 1e9:
            self._ask_to_end(running, _EndRequest("hang", f"no step for {hang_limit_s:g} s"))

    def _ask_to_end(self, running: RunningJob, request: _EndRequest) -> None:
        """Send SIGTERM to a job, and SIGKILL when the grace time is over."""
        known = self._requests.setdefault(running.job.id, request)
        if known is request:
            send_signal(running.holder, signal.SIGTERM)
            send_signal(running.holder, signal.SIGCONT)  # a suspended one hears nothing
        elif boot_ns() - known.at_ns > self._grace_s * 1e9:
            send_signal(running.holder, signal.SIGKILL)

    def _look_at_progress(self, running: RunningJob) -> None:
        """Tell of a job that stands still, and of one that moves again."""
        job = running.job
        stall = self._describe_standstill(running)
        if not stall:
            if self._stalled_ns.pop(job.id, None) is not None or job.status.reason:
                self._journal.set_stalled(job.id, "")
                _log.info("job %d: moves again", job.id)
        elif job.id not in self._stalled_ns:
            self._stalled_ns[job.id] = boot_ns()
            self._journal.set_stalled(job.id, f"stalled: {stall}")
            _log.warning("job %d: stalled: %s", job.id, stall)

    def _describe_standstill(self, running: RunningJob) -> str:
        """Say how a job stands still; "" while it moves or nobody can tell."""
        run = self._record(running.job)
        found = standstill_of(run.folder) if run is not None else None
        if found is not None:
            return found.text
        return "suspended (SIGSTOP)" if is_job_suspended(running.holder) else ""

    def _end(self, running: RunningJob, end: ProcessEnd) -> None:
        """Write the end of an attempt, or put the job back in line for another one."""
        job = running.job
        status = self._status_of(running, end)
        has_attempts = job.status.attempt < job.spec.max_attempts
        if status.state == "failed" and has_attempts and status.failure in job.spec.retry:
            status = replace(status, state="waiting")
        self._journal.end(job.id, status)
        self._requests.pop(job.id, None)
        self._stalled_ns.pop(job.id, None)
        self._records.pop(job.id, None)
        reason = f": {status.reason}" if status.reason else ""
        _log.info("job %d: %s%s", job.id, status.state, reason)

    def _status_of(self, running: RunningJob, end: ProcessEnd) -> JobStatus:
        job = running.job
        folder = JobFolder.of(self._journal.folder, job.id)
        report = folder.report(job.status.attempt)
        ended = replace(
            job.status,
            run=report.run or (run.id if (run := self._record(job)) is not None else ""),
            exit_code=end.exit_code,
            signal=end.signal,
            ended_ns=end.ended_ns or time.time_ns(),
            seconds=_seconds(running, end),
        )
        if end.exit_code == 0:
            return replace(ended, state="finished")
        reason = end.error or report.reason or describe_end(end.exit_code, end.signal)
        if running.is_cancelled:
            advice = f"; assay resume {ended.run} resumes it" if ended.run else ""
            return replace(ended, state="cancelled", reason=f"{reason}{advice}")
        if request := self._requests.get(job.id):
            reason = f"{request.cause}; {reason}"
            return replace(ended, state="failed", failure=request.failure, reason=reason)
        tail = report.reason or folder.tail(_TAIL_BYTES)
        failure = report.failure or classify(end.exit_code, end.signal, tail)
        return replace(ended, state="failed", failure=failure, reason=reason)

    def _record(self, job: Job) -> RunView | None:
        """Return the run that a job has begun, whether it names it or not; None without one."""
        if job.id not in self._records:
            folder = JobFolder.of(self._journal.folder, job.id)
            name = folder.variables(job.status.attempt)[JOB_VARIABLE]
            start = Path(job.spec.project or job.spec.cwd)
            run = run_of_job(start, f"{QUEUE_JOB}{name}", newest=_NEWEST)
            # Jobs of a queue that was deleted had the same numbers.
            if run is None or run.file.newest.started_ns < job.status.created_ns:
                return None
            self._records[job.id] = run
        return self._records[job.id]

    # ----------------------------------------------------------------------------------- starting

    def _check_disk(self) -> None:
        """Raise RecordError on a full disk: a supervisor cannot write there how its job ended."""
        if not shutil.disk_usage(self._journal.folder).free:
            raise RecordError(
                "The disk is full: no job is started, and ends of jobs are not known yet.",
                where=str(self._journal.folder),
                fix="Free some space; the queue goes on by itself.",
            )

    def _start_waiting(self) -> None:
        """Start jobs in line while there are devices; one that does not fit lets others pass."""
        pool = self._pool.devices()
        # After a start the next job of the same wish is the first of them.
        while any(self._start_if_free(job, pool) for job in self._journal.startable()):
            pass

    def _start_if_free(self, job: Job, pool: Sequence[Device]) -> bool:
        """Start a job, or end one that can never start; False while nothing suitable is free."""
        choose = partial(choose_slots, job.spec, pool)
        try:
            # A look first: a claim waits for the write lock, and most find nothing free.
            is_free = choose(self._journal.leases()) is not None
            slots = self._journal.claim(job.id, choose) if is_free else None
        except InputError as error:  # a device that is not there any more
            self._refuse(job, error)
            return True
        if slots is None:
            return False
        try:
            self._start(job, job_variables(job.spec, slots, pool))
        except (NotRegularFileError, LinkedFolderError) as error:
            what = f"its folder cannot be written: {error.filename}: {error.strerror}"
            self._end_unstarted(job, what)
        return True

    def _start(self, job: Job, variables: dict[str, str]) -> None:
        folder = JobFolder.of(self._journal.folder, job.id).make()
        attempt = job.status.attempt + 1
        environment = {
            **job.spec.environment,
            **variables,
            **folder.variables(attempt),
        }
        process = start_forked(
            job.spec.command, job.spec.cwd, environment, folder.log, folder.exit_file(attempt)
        )
        self._children.add(process.holder.pid)
        try:
            self._journal.begin(job.id, process.holder)
        except BaseException:
            process.give_up()  # the journal does not know it: the next round starts another one
            raise
        process.open_gate()
        _start_watcher(job.spec.project)
        _log.info("job %d: started on %s", job.id, variables[JOB_DEVICES_VARIABLE])

    def _refuse(self, job: Job, error: AssayError) -> None:
        """End a job that can never start, with the reason."""
        nowhere = self._journal.claim(job.id, lambda leases: [])
        if nowhere is not None:
            self._end_unstarted(job, error.what)

    def _end_unstarted(self, job: Job, reason: str) -> None:
        """Write the end of a claimed job whose command never began."""
        status = replace(job.status, state="failed", failure="config", reason=reason)
        self._journal.end(job.id, replace(status, ended_ns=time.time_ns()))

    def _devices(self) -> list[QueueDevice]:
        """Return the devices that jobs on "auto" get, for those who look at the queue."""
        pool = self._pool.devices()
        if not pool:
            return [QueueDevice(key="cpu", name="cpu", shared_by=cpu_jobs())]
        return [
            QueueDevice(key=each.key, name=each.name, total_bytes=each.total_bytes) for each in pool
        ]

    # ------------------------------------------------------------------------------------ waiting

    def _is_empty(self) -> bool:
        return not self._journal.running() and not self._journal.startable()

    def _wait(self) -> None:
        """Sleep until a job ends, the queue is changed by somebody else, or a second is over."""
        version = self._journal.version()
        until = time.monotonic() + _ROUND_S
        with ends_of([running.holder for running in self._journal.running()]) as wait:
            while not self._has_stopped and time.monotonic() < until:
                if wait(_TICK_S) or self._journal.version() != version:
                    return

    def _reap(self) -> None:
        """Collect supervisors that have ended: a zombie would hold its pid for ever."""
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            self._children.discard(pid)

    def _stop(self, _signals: Signals, _number: int) -> None:
        """Leave the loop; running jobs go on."""
        self._has_stopped = True


def _only_dispatcher(folder: Path) -> AbstractContextManager[None]:
    return hold_lock(folder / LOCK_NAME, "A dispatcher is at work for this queue already.")


def _start_watcher(root: str) -> None:
    """Have messages sent about a job's run, where its project has rules for them."""
    project = find_project(Path(root)) if root else None
    if project is not None:
        try:
            start_watcher(project)
        except (AssayError, OSError) as error:  # a mistake in the rules ends no job
            _log.warning("%s", error)


def _seconds(running: RunningJob, end: ProcessEnd) -> float | None:
    """Return how long a job ran; None if the machine was restarted meanwhile."""
    if running.holder.place != this_place():
        return None
    return max(0, (end.ended_boot_ns or boot_ns()) - running.started_boot_ns) / 1e9


def _has_died(holder: LeaseHolder) -> bool:
    """Kill what is left of a process group, and return True when nothing is.

    Data workers that outlive their run would still have the device.
    """
    for _ in range(_DEATH_TRIES):
        if not is_alive(holder):
            return True
        send_signal(holder, signal.SIGKILL)
        time.sleep(_DEATH_S)
    return False
