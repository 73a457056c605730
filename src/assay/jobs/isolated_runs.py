"""Configs trained in OS processes of their own, several at once on several devices."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from assay.compose.launch_ranks import task_of
from assay.compose.launch_settings import Launch, RunResult
from assay.compose.unfinished import run_of_job
from assay.config.loading import Config
from assay.core.errors import AssayError, InputError
from assay.core.job import JOB_VARIABLE, FailureClass, JobSpec
from assay.core.json_codec import write_json
from assay.core.signals import Signals, answered
from assay.jobs.devices import choose_slots, job_variables, this_machine, wanted_devices
from assay.jobs.failure import classify, describe_end
from assay.jobs.job_folder import JobFolder, JobResult, LogReader
from assay.jobs.job_process import (
    GatedProcess,
    ProcessEnd,
    ends_of,
    is_alive,
    read_end,
    send,
    start_apart,
)
from assay.jobs.training_job import TRAIN_COMMAND, UNTOLD
from assay.store.job_journal import DeviceSlot, JobJournal, holder_of

GRACE_S = 30.0
_ROUND_S = 1.0
_SHOW_S = 0.2
_TAIL_BYTES = 20_000
_SHOWN_LINES = 12
_PREFIX = "assay-runs-"


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


@dataclass(slots=True)
class _Child:
    """OS process of one config, its leases, and the folder in which it reports."""

    config: Config
    folder: JobFolder
    gated: GatedProcess
    process: subprocess.Popen[bytes]
    slots: list[DeviceSlot]
    name: str


@dataclass(slots=True)
class IsolatedRuns:
    """Trainer of configs in OS processes: as many at once as devices are free.

    `edit_test` names a function that changes the config of the test. `stop_at_first`: after a
    failure no further config is started; those that run go on. `per_device`: how many share a
    device, 0 for one. Devices are leased on the whole machine: neither runs of other launchers nor
    jobs of the queue have the same at the same time. `show` gets what the runs print, of one run
    after another in the order of the configs. `tells_ends`: a run prints how it ended, too.
    """

    then_test: bool = False
    edit_test: str | None = None
    stop_at_first: bool = False
    per_device: int = 0
    show: Callable[[str], object] = lambda text: None
    tells_ends: bool = False
    _children: dict[int, _Child] = field(default_factory=dict)
    _ended: dict[int, RunResult] = field(default_factory=dict)
    _signal: int = 0
    _is_stopping: bool = False
    _has_told_waiting: bool = False

    def train(self, points: Iterable[tuple[Config, Launch]]) -> Iterator[RunResult]:
        """Yield results in the order of the configs, whichever ends first.

        After a signal, also to one of the runs alone, and after a failure with `stop_at_first`,
        there are fewer results.
        InputError for devices that are not there.
        """
        waiting = list(enumerate(points))[::-1]
        for _, (_, launch) in waiting:
            wanted_devices(self._spec(launch), this_machine().devices())
        yielded = 0
        with ExitStack() as stack:
            journal = stack.enter_context(JobJournal())
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(self._end_all, journal)
            stack.enter_context(answered(self._hear))
            log = LogReader(JobFolder(folder / "0").log)
            while waiting or self._children:
                self._collect(journal)
                if self._is_stopping:
                    waiting.clear()
                while self._start_next(waiting, journal, folder):
                    pass
                while yielded in self._ended:
                    self.show(log.read(is_last=True))
                    yield self._ended[yielded]
                    yielded += 1
                    log = LogReader(JobFolder(folder / str(yielded)).log)
                self._wait(log)

    def _wait(self, log: LogReader) -> None:
        """Show what a run prints until a run ends, a signal comes, or a device may be free."""
        until = time.monotonic() + _ROUND_S
        with ends_of([child.gated.holder for child in self._children.values()]) as wait:
            while not self._is_stopping and time.monotonic() < until:
                self.show(log.read())
                if wait(_SHOW_S):
                    return

    def _spec(self, launch: Launch) -> JobSpec:
        device = launch.device or "auto"
        return JobSpec(command=(), cwd="", device=device, per_device=self.per_device)

    def _start_next(
        self,
        waiting: list[tuple[int, tuple[Config, Launch]]],
        journal: JobJournal,
        folder: Path,
    ) -> bool:
        """Start the next config, if a device is free; return True if it was started."""
        if not waiting or self._is_stopping:
            return False
        number, (config, launch) = waiting[-1]
        spec, pool = self._spec(launch), this_machine().devices()
        journal.free_dead(is_alive)
        choose = partial(choose_slots, spec, pool)
        # A look first: a claim waits for the write lock, and most find nothing free.
        slots = None
        if choose(journal.leases()) is not None:
            slots = journal.take(choose, holder_of(os.getpid()))
        if slots is None:
            self._tell_waiting(journal)
            return False
        waiting.pop()
        place = JobFolder(folder / str(number)).made()
        variables = job_variables(spec, slots, pool)
        child = self._start(config, launch, place, list(slots), variables)
        self._children[number] = child
        journal.hand_over(slots, child.gated.holder)
        child.gated.open_gate()
        return True

    def _tell_waiting(self, journal: JobJournal) -> None:
        """Say once who has the devices, when nothing of this launcher runs."""
        if self._children or self._has_told_waiting:
            return
        self._has_told_waiting = True
        held = [
            f"{each.slot.name} by {f'job {each.job}' if each.job else f'process {each.holder.pid}'}"
            for each in journal.leases()
        ]
        self.show(f"waiting for a free device; held: {', '.join(held) or 'none, but in use'}\n")

    def _start(
        self,
        config: Config,
        launch: Launch,
        folder: JobFolder,
        slots: list[DeviceSlot],
        variables: dict[str, str],
    ) -> _Child:
        launch = replace(launch, device=None)
        task = task_of(config, launch, then_test=self.then_test, edit_test=self.edit_test)
        path = folder.path / "task.json"
        write_json(path, asdict(task), durable=False)
        environment = {**os.environ, **_module_path(), **variables, **folder.variables(1)}
        name = f"{environment[JOB_VARIABLE]}-{os.urandom(4).hex()}"
        environment[JOB_VARIABLE] = name
        command = [sys.executable, "-m", "assay", TRAIN_COMMAND, str(path)]
        command += [] if self.tells_ends else [UNTOLD]
        gated, process = start_apart(
            command, os.getcwd(), environment, folder.log, folder.exit_file(1)
        )
        return _Child(config, folder, gated, process, slots, name)

    def _collect(self, journal: JobJournal) -> None:
        """Turn OS processes that have ended into results, and free their devices."""
        for number, child in list(self._children.items()):
            if child.process.poll() is None:
                continue
            send(child.gated.holder, signal.SIGKILL)
            journal.give_back(child.slots, child.gated.holder)
            result = self._result(child)
            self._ended[number] = result
            del self._children[number]
            if result.status == "stopped" or (self.stop_at_first and result.status != "finished"):
                self._is_stopping = True

    def _result(self, child: _Child) -> RunResult:
        """Return the result that a child left, or that of its death."""
        left = child.folder.result(1)
        if left.status:
            return _read_result(left, child.config, self._signal)
        exit_file = child.folder.exit_file(1)
        end = read_end(exit_file, child.gated.holder) or ProcessEnd(signal=signal.SIGKILL)
        tail = child.folder.tail(_TAIL_BYTES)
        shown = "\n  ".join(tail.strip().splitlines()[-_SHOWN_LINES:])
        cause = end.error or describe_end(end.exit_code, end.signal)
        view = run_of_job(child.config, f"queue {child.name}")
        error = CrashError(
            f"The OS process of the run ended: {cause}.\n  {shown}".rstrip(),
            signal=end.signal,
            failure=classify(end.exit_code, end.signal, tail),
            where=str(view.path) if view is not None else "",
        )
        return RunResult(
            record_dir=view.path if view is not None else None,
            config=child.config,
            status="crashed",
            exception=error,
            exit_code=128 + end.signal if end.signal else end.exit_code or 1,
            id=view.id if view is not None else "",
            signal=self._signal,
        )

    def _hear(self, _signals: Signals, number: int) -> None:
        """Ask all runs to stop and save; a second signal kills them."""
        is_second = bool(self._signal)
        self._signal, self._is_stopping = number, True
        for child in self._children.values():
            send(child.gated.holder, signal.SIGKILL if is_second else signal.SIGTERM)

    def _end_all(self, journal: JobJournal) -> None:
        """End what still runs when nobody waits for the results any more."""
        for child in self._children.values():
            send(child.gated.holder, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for child in self._children.values():
            try:
                child.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                send(child.gated.holder, signal.SIGKILL)
                child.process.wait()
            journal.give_back(child.slots, child.gated.holder)


def _module_path() -> dict[str, str]:
    """Return PYTHONPATH with the folders that this process has added to `sys.path` by itself.

    Those of the interpreter have their places in the other process already.
    """
    own = (sys.prefix, sys.base_prefix)
    added = [each for each in sys.path if each and not each.startswith(own)]
    return {"PYTHONPATH": os.pathsep.join(added)} if added else {}


def _read_result(left: JobResult, config: Config, heard: int) -> RunResult:
    """Return the result of a run as its OS process has written it."""
    return RunResult(
        record_dir=Path(left.record_dir) if left.record_dir else None,
        config=config,
        status=left.status or "failed",
        value=left.value,
        exception=_error(left) if left.failure else None,
        exit_code=left.exit_code,
        id=left.run,
        step=left.step,
        signal=heard,
        note=left.note,
        reason=left.end_reason,
        test=_read_result(left.test, config, 0) if left.test is not None else None,
    )


def _error(left: JobResult) -> IsolatedRunError:
    assert left.failure
    kind = IsolatedInputError if left.failure == "config" else IsolatedRunError
    error = kind(left.error or left.reason, failure=left.failure, kind=left.error_type)
    if left.traceback:
        error.__cause__ = RemoteTraceback(left.traceback)
    return error
