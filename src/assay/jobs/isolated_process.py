"""OS process that trains one config on devices which it leases, and its result."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil  # type: ignore[import-untyped]

from assay.compose.launch import TASK_NAME, Launch, ProcessTask, RunResult, task_arguments
from assay.config.loading import Config
from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import AssayError, InputError
from assay.core.job import (
    JOB_DEVICES_VARIABLE,
    JOB_VARIABLE,
    PARENT_VARIABLE,
    QUEUE_JOB,
    FailureClass,
    JobSpec,
    classify,
    describe_end,
)
from assay.core.parent_death import main_pid
from assay.core.processes import GRACE_S
from assay.formats import lease as leases
from assay.formats.task_report import TaskReport
from assay.jobs.devices import (
    CPU,
    choose_own_slot,
    choose_slots,
    job_variables,
    this_machine,
    wanted_devices,
)
from assay.jobs.job_folder import JobFolder
from assay.jobs.job_process import ends_of, is_alive, send_signal
from assay.query.find import run_of_job
from assay.query.run import RunView
from assay.store.device_leases import DeviceSlot, LeaseHolder, holder_of
from assay.store.job_journal import JobJournal
from assay.store.layout import find_project, run_folders
from assay.store.queue_files import append_to_log, hold_lock

_TAIL_BYTES = 20_000
_SHOWN_LINES = 12
_FOLDERS = "launchers"
_LOCK_S = 20.0
_ROUND_S = 0.5
_NEWEST = 200
"""Records among which that of a living process is looked for."""


class IsolatedRunError(AssayError):
    """Error of a run in an OS process of its own; `failure` is its class, `kind` its type's name.

    The lines of its traceback are those of its `__cause__`.
    """

    def __init__(
        self, what: str, *, failure: FailureClass, kind: str = "", where: str = ""
    ) -> None:
        super().__init__(what, where=where)
        self.failure = failure
        self.kind = kind


class IsolatedInputError(IsolatedRunError, InputError):
    """Mistake in the config or the input of a run in an OS process of its own."""


class RemoteTraceback(Exception):
    """Traceback of another OS process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class CrashError(IsolatedRunError):
    """Death of a run's OS process by `signal`, such as 11 for a segmentation fault."""

    def __init__(self, what: str, *, signal: int, failure: FailureClass, where: str = "") -> None:
        super().__init__(what, failure=failure, where=where)
        self.signal = signal


@dataclass(slots=True, kw_only=True, eq=False)
class IsolatedProcess:
    """OS process of one config, its leases, and the folder in which it reports.

    It leads a process group, and is its `holder`. This process is its parent and sees its end.
    """

    config: Config
    folder: JobFolder
    process: subprocess.Popen[bytes]
    holder: LeaseHolder
    slots: tuple[DeviceSlot, ...]
    name: str
    _asked_s: float = 0.0

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the run."""
        send_signal(self.holder, number)

    def ask_to_end(self, grace_s: float = GRACE_S) -> None:
        """Have the run save and end; a call after the grace time kills it."""
        if self.has_ended():
            return
        if not self._asked_s:
            self._asked_s = time.monotonic()
            self.send(signal.SIGTERM)
        elif time.monotonic() - self._asked_s > grace_s:
            self.send(signal.SIGKILL)

    def record(self) -> RunView | None:
        """Return the record that the run has begun; None before that."""
        return self._run_of_job(newest=_NEWEST)

    def _run_of_job(self, *, newest: int = 0) -> RunView | None:
        path = self.config.path
        start = path.resolve().parent if path is not None else Path.cwd()
        return run_of_job(start, f"{QUEUE_JOB}{self.name}", newest=newest)

    def result(self, heard: int = 0) -> RunResult:
        """Return the result that the run left, or that of its death; `heard`: signal before it."""
        report = self.folder.report(1)
        if report.status:
            return _read_result(report, self.config, heard)
        code = self.process.wait()
        number = max(0, -code)
        tail = self.folder.tail(_TAIL_BYTES)
        last_lines = tail.strip().splitlines()[-_SHOWN_LINES:]
        shown = "\n  ".join(last_lines)
        view = self._run_of_job()
        error = CrashError(
            f"The OS process of the run ended: {describe_end(code, number)}.\n  {shown}".rstrip(),
            signal=number,
            failure=classify(code, number, tail),
            where=str(view.path) if view is not None else "",
        )
        return RunResult(
            record_dir=view.path if view is not None else None,
            config=self.config,
            status="crashed",
            exception=error,
            exit_code=128 + number if number else code or 1,
            id=view.id if view is not None else "",
            signal=heard,
        )


@dataclass(slots=True, kw_only=True)
class IsolatedLauncher:
    """Starter of OS processes for configs; a context manager, at whose end all have ended.

    `per_device`: how many share a device, 0 for one. Accelerators are leased on the whole machine:
    neither runs of other launchers nor jobs of the queue have the same at the same time. Runs on
    the CPU wait for those of this launcher alone. Inside of a job, runs share those of the job.
    `tells_ends`: a run prints how it ended. All are killed with this process.
    """

    per_device: int = 0
    tells_ends: bool = False
    children: list[IsolatedProcess] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _journal: JobJournal = field(init=False)
    _folder: Path = field(init=False)

    def __enter__(self) -> IsolatedLauncher:
        self._journal = self._stack.enter_context(JobJournal())
        self._folder = self._make_folder()
        self._stack.callback(self._end_all)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def job_folder(self, name: str) -> JobFolder:
        """Return the folder of the process that was, or will be, started under a name."""
        return JobFolder(self._folder / name)

    def check_devices(self, launch: Launch) -> None:
        """Raise InputError for devices that are not there."""
        wanted_devices(self._spec(launch), this_machine().devices())

    def start(
        self, name: str, config: Config, launch: Launch, *, resumed: str = "", **options: Any
    ) -> IsolatedProcess | None:
        """Start a config on a free device; None while there is none.

        `name` is that of its folder. `resumed` is the run to resume, "" for a new one; `options`
        are arguments of `run_one`.
        """
        leased = self._lease(self._spec(launch))
        if leased is None:
            return None
        slots, variables = leased
        folder = self.job_folder(name).make()
        task = ProcessTask.of("job", config, replace(launch, device=None), **options)
        tells: Literal["nothing", "advice"] = "advice" if self.tells_ends else "nothing"
        replace(task, resumed=resumed, tells=tells).write(folder.path / TASK_NAME)
        child = self._spawn(config, folder, slots, variables)
        self.children.append(child)
        self._journal.hand_over([slot for slot in slots if slot.key != CPU], child.holder)
        return child

    def end(self, child: IsolatedProcess, heard: int = 0) -> RunResult:
        """Free the devices of a process that has ended, and return its result."""
        child.send(signal.SIGKILL)  # data workers that outlive their run
        self._journal.give_back(child.slots, child.holder)
        self.children.remove(child)
        return child.result(heard)

    def ask_all_to_end(self, *, at_once: bool = False) -> None:
        """Have all runs save and end, however long that takes; `at_once` kills them."""
        for child in self.children:
            child.ask_to_end(0.0 if at_once else math.inf)

    def await_end(self, seconds: float) -> bool:
        """Wait until a process ends, so long at most; return whether one has."""
        with ends_of([child.holder for child in self.children]) as wait:
            return wait(seconds)

    def describe_holders(self) -> str:
        """Return who has which devices, for people who wait."""
        held = [
            f"{each.slot.name} by {f'job {each.job}' if each.job else name_process(each.holder)}"
            for each in self._journal.leases()
            if each.slot.key != CPU
        ]
        who = ", ".join(held) or "none, but in use"
        return (
            f"waiting for a free device; held: {who} (--no-wait ends instead, --no-isolate trains"
            " one run after another without waiting, --device cpu on the CPU)"
        )

    def _lease(self, spec: JobSpec) -> tuple[tuple[DeviceSlot, ...], dict[str, str]] | None:
        """Lease devices; return them with the variables by which a run sees them alone."""
        if os.environ.get(JOB_DEVICES_VARIABLE):  # a job, whose runs share its devices
            return (), {}
        pool = this_machine().devices()
        if all(device.key == CPU for device in wanted_devices(spec, pool)):
            own = choose_own_slot(spec, [slot for child in self.children for slot in child.slots])
            return None if own is None else (tuple(own), job_variables(spec, own, pool))
        self._journal.free_dead(is_alive)
        choose = partial(choose_slots, spec, pool)
        # A look first: a claim waits for the write lock, and most find nothing free.
        if choose(self._journal.leases()) is None:
            return None
        slots = self._journal.take(choose, holder_of(os.getpid()))
        return None if slots is None else (tuple(slots), job_variables(spec, slots, pool))

    def _spec(self, launch: Launch) -> JobSpec:
        device = launch.device or "auto"
        return JobSpec(command=(), cwd="", device=device, per_device=self.per_device)

    def _spawn(
        self,
        config: Config,
        folder: JobFolder,
        slots: tuple[DeviceSlot, ...],
        variables: dict[str, str],
    ) -> IsolatedProcess:
        environment = {**os.environ, **_module_path(), **variables, **folder.variables(1)}
        name = f"{environment[JOB_VARIABLE]}-{os.urandom(4).hex()}"
        environment[JOB_VARIABLE] = name
        if main_pid():  # the kernel takes the end of another thread for that of the process
            environment[PARENT_VARIABLE] = str(os.getpid())
        try:
            with open(append_to_log(folder.log), "ab") as out:
                process = subprocess.Popen(
                    [sys.executable, *task_arguments(folder.path / TASK_NAME)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise InputError(f"A run cannot be started: {error}.") from error
        return IsolatedProcess(
            config=config,
            folder=folder,
            process=process,
            holder=holder_of(process.pid),
            slots=slots,
            name=name,
        )

    def _make_folder(self) -> Path:
        """Make a folder for the runs, and delete those of launchers that were killed."""
        folders = self._journal.folder / _FOLDERS
        make_directory(folders, PRIVATE)
        with hold_lock(folders / "lock", "Other runs are being started.", patience_s=_LOCK_S):
            for each in folders.glob("*/lock"):
                with suppress(InputError), hold_lock(each, "Its launcher lives.", patience_s=0):
                    shutil.rmtree(each.parent, ignore_errors=True)
            folder = folders / os.urandom(8).hex()
            make_directory(folder, PRIVATE)
            self._stack.enter_context(hold_lock(folder / "lock", "It is taken."))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _end_all(self) -> None:
        """End what still runs when nobody waits for the results any more."""
        while any(not child.has_ended() for child in self.children):
            for child in self.children:
                child.ask_to_end()
            self.await_end(_ROUND_S)
        for child in self.children:
            self._journal.give_back(child.slots, child.holder)


def _module_path() -> dict[str, str]:
    """Return PYTHONPATH with the folders that this process has added to `sys.path` by itself.

    Those of the interpreter have their places in the other process already.
    """
    own = (sys.prefix, sys.base_prefix)
    added = [each for each in sys.path if each and not each.startswith(own)]
    return {"PYTHONPATH": os.pathsep.join(added)} if added else {}


def name_process(holder: LeaseHolder) -> str:
    """Return the run that a process trains, as far as it can be told, with the process."""
    plain = f"process {holder.pid}"
    try:
        process = psutil.Process(holder.pid)
        project = find_project(Path(process.cwd()))
        pids = {holder.pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.Error:
        return plain
    for folder in reversed(run_folders(project)[-_NEWEST:] if project is not None else []):
        lease = leases.read(folder.path)
        if lease is not None and lease.pid in pids:
            return f"the run {folder.id} of {folder.path.parent.parent} ({plain})"
    return plain


def _read_result(report: TaskReport, config: Config, heard: int) -> RunResult:
    """Return the result of a run as its OS process has reported it."""
    return RunResult(
        record_dir=Path(report.record_dir) if report.record_dir else None,
        config=config,
        status=report.status or "failed",
        value=report.value,
        exception=_reported_error(report) if report.failure else None,
        # It was asked to end by SIGTERM, whatever the launcher heard.
        exit_code=128 + heard if heard and report.status == "stopped" else report.exit_code,
        id=report.run,
        step=report.step,
        signal=heard,
        note=report.note,
        reason=report.end_reason,
        test=_read_result(report.test, config, 0) if report.test is not None else None,
    )


def _reported_error(report: TaskReport) -> IsolatedRunError:
    assert report.failure
    kind = IsolatedInputError if report.failure == "config" else IsolatedRunError
    error = kind(report.error or report.reason, failure=report.failure, kind=report.error_type)
    if report.traceback:
        error.__cause__ = RemoteTraceback(report.traceback)
    return error
