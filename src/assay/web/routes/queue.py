"""Routes of the queue: devices with their jobs, the line, logs, and acts on jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from fastapi import Path as PathParameter
from fastapi import Query, Request, Response
from pydantic import Field

from assay.core.errors import InputError
from assay.core.job import ENDED, Job
from assay.query.job_queue import (
    QueueView,
    has_queue,
    job_text,
    log_bytes,
    queue_counts,
    queue_view,
    runs_of_jobs,
)
from assay.query.rerun import Rerun, rerun_of
from assay.store.device_leases import DeviceLease
from assay.store.job_journal import JobJournal, queue_dir
from assay.store.layout import Project
from assay.store.queue_files import dispatcher_pid
from assay.web.access import Rules
from assay.web.answers import ErrorBody, HomeOf, Model, SiteOf, make_router, plain_text, view_of
from assay.web.queueing import MAX_RERUNS, RerunSubmitter
from assay.web.routes.run_files import MAX_TEXT_BYTES
from assay.web.routes.session import queue_refusal
from assay.web.site import Home, ProjectSite, key_of

MAX_JOBS = 10_000
MAX_JOB = 2**53

router = make_router()

RunName = Annotated[str, Field(max_length=64, pattern="^[a-z0-9]+$")]
JobId = Annotated[int, PathParameter(ge=1, le=MAX_JOB)]


class JobLine(Model):
    """One job. Times are Unix seconds, null for not yet; `run` is "" while none is known.

    `seconds` is how long the last attempt has run, by a clock that nobody sets.
    `project_key` names the project in addresses, null for one that this server does not show.
    """

    id: int
    title: str
    state: Literal["waiting", "running", "finished", "failed", "cancelled"]
    is_held: bool
    is_stopping: bool
    config: str
    project: str
    project_key: str | None
    group: str
    wants: str
    devices: list[str]
    attempt: int
    max_attempts: int
    pid: int
    created: float
    started: float | None
    ended: float | None
    seconds: float | None
    time_limit_s: float | None
    exit_code: int | None
    signal: int
    failure: str
    reason: str
    run: str
    log_bytes: int


class DeviceHolder(Model):
    """Holder of a slot of a device since a Unix time; `job` is null for a run outside the queue."""

    job: JobLine | None
    pid: int
    since: float
    memory_bytes: int


class DeviceLane(Model):
    """One device; at most `shared_by` hold it at once. `total_bytes` is 0 where nobody knows."""

    name: str
    key: str
    shared_by: int
    total_bytes: int
    holders: list[DeviceHolder]


class QueueFacts(Model):
    """The queue of this machine. `dispatcher` is the pid of the dispatcher, 0 without one."""

    exists: bool
    is_paused: bool
    dispatcher: int
    total_waiting: int
    total_running: int
    total_ended: int
    devices: list[DeviceLane]
    waiting: list[JobLine]
    ended: list[JobLine]


class QueueCounts(Model):
    waiting: int
    running: int
    ended: int


class QueueAct(Model):
    """Action on one job, or on the whole queue without `job` (pause and resume)."""

    act: Literal["pause", "resume", "stop"]
    job: Annotated[int, Field(ge=1, le=MAX_JOB)] | None = None


class RerunPlan(Model):
    """Plan of putting runs in line again: the command, its folder, the device that each job needs.

    `refusal` says why it cannot be done, "" when it can. `dispatcher` is the pid of the dispatcher,
    0 without one.
    """

    command: str
    root: str
    device: str
    dispatcher: int
    refusal: str
    runs: list[Rerun]


class RerunAct(Model):
    """Runs to put in line again, by id: all that a page can say about them."""

    runs: Annotated[list[RunName], Field(min_length=1, max_length=MAX_RERUNS)]


class QueuedJobs(Model):
    """Jobs that were put in line. `dispatcher` is the pid of the dispatcher, 0 without one."""

    jobs: list[int]
    dispatcher: int


@router.get("/api/queue/rerun")
def rerun_plan(
    request: Request,
    home: HomeOf,
    runs: Annotated[list[RunName], Query(min_length=1, max_length=MAX_RERUNS)],
) -> RerunPlan:
    """Return what putting these runs in line again would do."""
    return _plan(request.app.state.rules, home, runs)


@router.post(
    "/api/queue/rerun",
    responses={409: {"model": ErrorBody, "description": "Another request is at work."}},
)
def rerun(request: Request, home: HomeOf, given: RerunAct) -> QueuedJobs:
    """Put runs in line again, as `assay rerun --queue` does: all of them or none."""
    plan = _plan(request.app.state.rules, home, given.runs)
    refusals = [f"{each.run}: {each.refusal}" for each in plan.runs if each.refusal]
    if plan.refusal or refusals:
        raise InputError(plan.refusal or "\n".join(refusals))
    submitter: RerunSubmitter = request.app.state.reruns
    jobs = submitter.submit(home.project, [each.run for each in plan.runs], plan.device)
    return QueuedJobs(jobs=jobs, dispatcher=dispatcher_pid(queue_dir()))


def _plan(rules: Rules, home: Home, ids: list[str]) -> RerunPlan:
    found = [rerun_of(view_of(home, each)) for each in dict.fromkeys(ids)]
    device = "cpu" if all(each.device == "cpu" for each in found) else "auto"
    words = ["assay", "rerun", "--queue", *(each.run for each in found), "--device", device]
    return RerunPlan(
        command=" ".join(words),
        root=str(home.project.root),
        device=device,
        dispatcher=dispatcher_pid(queue_dir()),
        refusal=queue_refusal(rules),
        runs=found,
    )


@router.get("/api/queue")
def queue(
    site: SiteOf,
    waiting: Annotated[int, Query(ge=0, le=MAX_JOBS)] = 200,
    ended: Annotated[int, Query(ge=0, le=MAX_JOBS)] = 50,
) -> QueueFacts:
    """Return the devices with their jobs, the first jobs of the line, and the last that ended."""
    return _facts(site, queue_view(waiting=waiting, ended=ended))


@router.get("/api/queue/counts")
def counts() -> QueueCounts:
    """Return how many jobs there are."""
    found = queue_counts()
    return QueueCounts(
        waiting=found.get("waiting", 0),
        running=found.get("running", 0),
        ended=sum(found.get(state, 0) for state in ENDED),
    )


@router.get("/api/queue/jobs/{job}/text", response_class=Response)
def text(
    job: JobId,
    start: Annotated[int, Query(ge=0, le=2**53)] = 0,
    end: Annotated[int | None, Query(ge=0, le=2**53)] = None,
) -> Response:
    """Return a part of what a job has printed, at most 4 MB at once."""
    _needs_queue()
    last = min(start + MAX_TEXT_BYTES, start + MAX_TEXT_BYTES if end is None else end)
    return plain_text(job_text(job, start, last))


@router.post("/api/queue/acts")
def act(site: SiteOf, given: QueueAct) -> QueueFacts:
    """Pause, resume or stop, as `assay queue` does; return the queue after it."""
    _needs_queue()
    with JobJournal() as journal:
        _do(journal, given)
    return _facts(site, queue_view())


def _do(journal: JobJournal, given: QueueAct) -> None:
    match given:
        case QueueAct(act="pause" | "resume", job=None):
            journal.pause(paused=given.act == "pause")
        case QueueAct(job=None):
            raise InputError(f"The act `{given.act}` needs a job.")
        case QueueAct(act="pause" | "resume", job=int(job)):
            journal.hold([job], held=given.act == "pause")
        case QueueAct(act="stop", job=int(job)):
            journal.request_cancel([job])


def _needs_queue() -> None:
    if not has_queue():
        raise InputError("There is no queue on this machine.", fix="assay run CONFIG --queue")


def _facts(site: ProjectSite, view: QueueView) -> QueueFacts:
    lines = _Lines(site, view)
    return QueueFacts(
        exists=bool(view.counts),
        is_paused=view.is_paused,
        dispatcher=view.dispatcher,
        total_waiting=view.counts.get("waiting", 0),
        total_running=view.counts.get("running", 0),
        total_ended=sum(view.counts.get(state, 0) for state in ENDED),
        devices=[
            DeviceLane(
                name=lane.device.name,
                key=lane.device.key,
                shared_by=max([lane.device.shared_by, *(e.slot.shared_by for e in lane.leases)]),
                total_bytes=lane.device.total_bytes,
                holders=[lines.holder(lease) for lease in lane.leases],
            )
            for lane in view.lanes
        ],
        waiting=[lines.line(job) for job in view.waiting],
        ended=[lines.line(job) for job in view.ended],
    )


class _Lines:
    """Lines of the jobs of one view, with the projects and runs that they lead to."""

    def __init__(self, site: ProjectSite, view: QueueView) -> None:
        self._site = site
        self._view = view
        self._keys: dict[str, str | None] = {}
        self._runs: dict[str, dict[int, str]] = {}

    def holder(self, lease: DeviceLease) -> DeviceHolder:
        job = self._view.running.get(lease.job)
        return DeviceHolder(
            job=self.line(job) if job is not None else None,
            pid=lease.holder.pid,
            since=lease.since_ns / 1e9,
            memory_bytes=lease.slot.memory_bytes,
        )

    def line(self, job: Job) -> JobLine:
        spec, status = job.spec, job.status
        key = self._key(spec.project) if spec.project else None
        return JobLine(
            id=job.id,
            title=spec.title or " ".join(spec.command),
            state=status.state,
            is_held=job.id in self._view.held,
            is_stopping=job.id in self._view.stopping,
            config=spec.config,
            project=Path(spec.project).name,
            project_key=key,
            group=spec.group,
            wants=spec.device if spec.devices == 1 else f"{spec.devices} of {spec.device}",
            devices=list(status.devices),
            attempt=status.attempt,
            max_attempts=spec.max_attempts,
            pid=status.pid,
            created=status.created_ns / 1e9,
            started=status.started_ns / 1e9 if status.started_ns else None,
            ended=status.ended_ns / 1e9 if status.ended_ns else None,
            seconds=status.duration_s,
            time_limit_s=spec.time_limit_s,
            exit_code=status.exit_code,
            signal=status.signal,
            failure=status.failure,
            reason=status.reason,
            run=status.run or self._run(job, key),
            log_bytes=log_bytes(job.id),
        )

    def _key(self, root: str) -> str | None:
        """Return the key of a project, "" for the server's own, None for one it does not show."""
        if root not in self._keys:
            key = key_of(Project(Path(root)))
            try:
                home = self._site.home("" if key == self._site.first.key else key)
                self._keys[root] = "" if home is self._site.first else home.key
            except InputError:
                self._keys[root] = None
        return self._keys[root]

    def _run(self, job: Job, key: str | None) -> str:
        """Return the run that a running job writes, "" while there is none."""
        if job.status.state != "running" or key is None:
            return ""
        if key not in self._runs:
            self._runs[key] = runs_of_jobs(self._site.home(key).catalog.open_rows())
        return self._runs[key].get(job.id, "")
