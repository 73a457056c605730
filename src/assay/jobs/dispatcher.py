"""Dispatcher: starts the jobs of this machine's queue on free devices, and writes how they end.

It keeps nothing in memory that the journal does not have. One that starts after another was killed
finds the running jobs there, and looks after them as if it had started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from assay.core.errors import AssayError, InputError, RecordError
from assay.core.job import Job, JobStatus
from assay.core.lease import this_place
from assay.core.signals import Signals, answered
from assay.jobs.devices import DevicePool, choose_slots, job_variables, this_machine
from assay.jobs.failure import classify, describe_end
from assay.jobs.job_folder import JobFolder
from assay.jobs.job_process import (
    ProcessEnd,
    is_alive,
    is_supervised,
    read_end,
    send,
    start_forked,
)
from assay.store.job_journal import JobJournal, LeaseHolder, RunningJob, boot_ns

LOCK_NAME = "dispatcher.lock"
GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL: a run saves a checkpoint meanwhile."""

_TICK_S = 0.05
_LOCK_S = 0.5
_DEATH_TRIES, _DEATH_S = 20, 0.01
_ROUND_S = 1.0
_TAIL_BYTES = 20_000

_log = logging.getLogger("assay.jobs")


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
        self._asked_ns: dict[int, int] = {}  # job -> when it got SIGTERM, on the clock of the boot
        self._children: set[int] = set()
        self._has_stopped = False

    def run(self, *, until_empty: bool = False) -> None:
        """Dispatch until SIGTERM or SIGINT, or until nothing is left; running jobs go on.

        InputError when another dispatcher has the queue.
        """
        with only_dispatcher(self._journal.folder), answered(self._stop):
            while not self._has_stopped:
                try:
                    self.round()
                    if until_empty and self._is_empty():
                        return
                    self._wait()
                except RecordError as error:  # a full disk, or a lock: the jobs know nothing of it
                    _log.warning("%s", error)
                    time.sleep(_ROUND_S)

    def round(self) -> None:
        """Write the ends of jobs, end those that must end, free devices, start what can start."""
        self._reap()
        for running in self._journal.running():
            self._look_after(running)
        self._journal.free_dead(is_alive)
        self._journal.cancel_dependents()
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
            self._ask_to_end(running)
        elif not has_supervisor and _has_died(holder):
            self._end(running, end or self._end_unseen(running))

    def _end_unseen(self, running: RunningJob) -> ProcessEnd:
        """Return the end of a job whose supervisor was killed, too."""
        if running.holder.place != this_place():
            return ProcessEnd(signal=signal.SIGKILL, error="the machine was restarted")
        return ProcessEnd(signal=signal.SIGKILL)

    def _ask_to_end(self, running: RunningJob) -> None:
        """Send SIGTERM to a cancelled or late job, and SIGKILL when the grace time is over."""
        job = running.job
        limit_s = job.spec.time_limit_s
        ran_s = (boot_ns() - running.started_boot_ns) / 1e9
        if not running.is_cancelled and (limit_s is None or ran_s <= limit_s):
            return
        asked_ns = self._asked_ns.get(job.id)
        if asked_ns is None:
            self._asked_ns[job.id] = boot_ns()
            send(running.holder, signal.SIGTERM)
        elif boot_ns() - asked_ns > self._grace_s * 1e9:
            send(running.holder, signal.SIGKILL)

    def _end(self, running: RunningJob, end: ProcessEnd) -> None:
        """Write the end of an attempt, or put the job back in line for another one."""
        job = running.job
        status = self._status_of(running, end)
        has_attempts = job.status.attempt < job.spec.max_attempts
        if status.state == "failed" and has_attempts and status.failure in job.spec.retry:
            status = replace(status, state="waiting")
        self._asked_ns.pop(job.id, None)
        self._journal.end(job.id, status)
        _log.info("job %d: %s %s", job.id, status.state, status.reason)

    def _status_of(self, running: RunningJob, end: ProcessEnd) -> JobStatus:
        job = running.job
        folder = JobFolder.of(self._journal.folder, job.id)
        result = folder.result(job.status.attempt)
        ended = replace(
            job.status,
            run=result.run,
            exit_code=end.exit_code,
            signal=end.signal,
            ended_ns=end.ended_ns or time.time_ns(),
        )
        if end.exit_code == 0:
            return replace(ended, state="finished")
        reason = end.error or result.reason or describe_end(end.exit_code, end.signal)
        if running.is_cancelled:
            return replace(ended, state="cancelled", reason=reason)
        if job.id in self._asked_ns:
            reason = f"time limit of {job.spec.time_limit_s:g} s; {reason}"
            return replace(ended, state="failed", failure="killed", reason=reason)
        tail = result.reason or folder.tail(_TAIL_BYTES)
        failure = result.failure or classify(end.exit_code, end.signal, tail)
        return replace(ended, state="failed", failure=failure, reason=reason)

    # ----------------------------------------------------------------------------------- starting

    def _start_waiting(self) -> None:
        """Start jobs in line while there are devices; one that does not fit lets others pass."""
        startable = self._journal.startable()
        if not startable:
            return
        pool = self._pool.devices()
        for job in startable:
            choose = partial(choose_slots, job.spec, pool)
            try:
                # A look first: a claim waits for the write lock, and most find nothing free.
                if choose(self._journal.leases()) is None:
                    continue
                slots = self._journal.claim(job.id, choose)
            except InputError as error:  # a device that is not there any more
                self._refuse(job, error)
                continue
            if slots is not None:
                self._start(job, job_variables(job.spec, slots, pool))

    def _start(self, job: Job, variables: dict[str, str]) -> None:
        folder = JobFolder.of(self._journal.folder, job.id).made()
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
        self._journal.begin(job.id, process.holder)
        process.open_gate()
        _log.info("job %d: started on %s", job.id, variables)

    def _refuse(self, job: Job, error: AssayError) -> None:
        """End a job that can never start, with the reason."""
        nowhere = self._journal.claim(job.id, lambda leases: [])
        if nowhere is not None:
            status = replace(job.status, state="failed", failure="config", reason=error.what)
            self._journal.end(job.id, replace(status, ended_ns=time.time_ns()))

    # ------------------------------------------------------------------------------------ waiting

    def _is_empty(self) -> bool:
        return not self._journal.running() and not self._journal.startable(1)

    def _wait(self) -> None:
        """Sleep until a job ends, the queue is changed by somebody else, or a second is over."""
        version = self._journal.version()
        until = time.monotonic() + _ROUND_S
        with _ends_of([running.holder for running in self._journal.running()]) as wait:
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


def _has_died(holder: LeaseHolder) -> bool:
    """Kill what is left of a process group, and return True when nothing is.

    Data workers that outlive their run would still have the device.
    """
    for _ in range(_DEATH_TRIES):
        if not is_alive(holder):
            return True
        send(holder, signal.SIGKILL)
        time.sleep(_DEATH_S)
    return False


@contextlib.contextmanager
def only_dispatcher(folder: Path) -> Iterator[None]:
    """Hold the lock of a queue; the kernel frees it at any death. InputError when it is taken."""
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(descriptor):
            raise InputError("A dispatcher is at work for this queue already.", where=str(folder))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock; wait a moment for those that only look whether it is taken."""
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_TICK_S)


def dispatcher_pid(folder: Path) -> int:
    """Return the pid of the living dispatcher of a queue, 0 without one."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).strip()
        return int(text) if text.isdigit() else -1
    finally:
        os.close(descriptor)
    return 0


@contextlib.contextmanager
def _ends_of(holders: list[LeaseHolder]) -> Iterator[Callable[[float], bool]]:
    """Give a function that waits for the end of any holder, and returns whether one ended.

    A pidfd is that of one process for ever, be it a child or not. Where there are none (macOS)
    the function sleeps.
    """
    poller = select.poll()
    descriptors = []
    if hasattr(os, "pidfd_open"):
        for holder in holders:
            with contextlib.suppress(OSError):
                descriptors.append(os.pidfd_open(holder.pid))
                poller.register(descriptors[-1], select.POLLIN)
    try:
        yield lambda seconds: bool(poller.poll(seconds * 1000))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
