"""Search for good hyper-parameters: a study proposes points, and runs measure them.

Runs are processes of the search, not jobs of the queue: a study needs results before it proposes
the next point, and a search that is killed leaves nothing behind that trains. Both lease devices
from the same journal.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from assay.compose import Launch, RunResult, resume, train_each
from assay.config import Config
from assay.config.expansion import at_point
from assay.config.standard_keys import sections_of
from assay.config.sweep import Point, Sweep
from assay.core.job import JobSpec
from assay.jobs.devices import this_machine, wanted_devices
from assay.jobs.isolated_process import IsolatedLauncher, IsolatedProcess
from assay.jobs.job_process import ends_of
from assay.jobs.study import SearchSpec, Study, make_study
from assay.jobs.trials import (
    PRUNED,
    SearchTrial,
    TrialRun,
    read_trial,
    read_trials,
    recorded_values,
)
from assay.query.run import RunView
from assay.record import edits
from assay.store.layout import Project

_LOOK_S = 0.5
"""Seconds between two looks at the metrics of runs, and between two tries to lease a device."""
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class TrialTask:
    """One run that is to be made: a trial under one seed; `unfinished` is what is left of it."""

    number: int
    seed: int
    point: Point
    unfinished: RunView | None = None


@dataclass(slots=True)
class ActiveTrial:
    """Task that is being done, by an OS process, or by this one: then `child` is None.

    `run` is its record, None before it was begun. `reported` counts the values of the metric that
    the study knows.
    """

    task: TrialTask
    child: IsolatedProcess | None = None
    run: TrialRun | None = None
    result: RunResult | None = None
    reported: int = 0
    is_pruned: bool = False
    _pruned_s: float = 0.0

    def has_ended(self) -> bool:
        return self.child is None or self.child.has_ended()

    def prune(self) -> None:
        """Have the OS process save its run and end; kill it when it does not."""
        if self.child is None or self.has_ended():
            return
        if not self._pruned_s:
            self._pruned_s = time.monotonic()
            self.child.send(signal.SIGTERM)
        elif time.monotonic() - self._pruned_s > _PATIENCE_S:
            self.child.send(signal.SIGKILL)

    def error(self) -> str:
        """Return the error of a run that left no result, with its exit code."""
        assert self.result is not None
        lines = str(self.result.exception or "no output").strip().splitlines()
        error = next((line.strip() for line in lines if "error" in line), lines[0])
        return f"exit code {self.result.exit_code}: {error}"


@dataclass(slots=True, kw_only=True)
class Search:
    """Search over the points of `plan`, up to `spec.trials` trials, `parallel` runs at once.

    One run at a time trains in this OS process, several in one each, on devices that they lease;
    `per_device` of them share one. `tell` is called with each run that ended, `watch` with the runs
    at work whenever one may have moved, `warn` with a line for people. `lost` is the number and
    seed of runs without a result. `is_stopped` is True after Ctrl-C or a signal.
    """

    config: Config
    plan: Sweep
    spec: SearchSpec
    sweep: str
    project: Project
    launch: Launch
    parallel: int = 1
    per_device: int = 0
    tell: Callable[[TrialRun], None] = lambda run: None
    watch: Callable[[list[ActiveTrial]], None] = lambda active: None
    warn: Callable[[str], None] = lambda line: None
    is_stopped: bool = False
    points: dict[int, Point] = field(default_factory=dict)
    lost: set[tuple[int, int]] = field(default_factory=set)
    _trials: dict[int, SearchTrial] = field(default_factory=dict)
    _tasks: deque[TrialTask] = field(default_factory=deque)
    _told: set[int] = field(default_factory=set)
    _has_told_waiting: bool = False

    def run(self) -> list[SearchTrial]:
        """Run what is missing; return all trials. The records of earlier runs are kept."""
        self.launch = replace(self.launch, sweep=self.sweep, search=self.spec.to_record())
        study = make_study(self.spec, self.plan)
        self._rebuild(study)
        launcher = IsolatedLauncher(per_device=self._per_device(), ends_with_parent=True)
        if self._is_isolated:
            launcher.check_devices(self.launch)
        active: list[ActiveTrial] = []
        with launcher if self._is_isolated else nullcontext():
            try:
                self._work(study, launcher, active)
            except KeyboardInterrupt:
                self.is_stopped = True
            finally:
                for each in active:
                    self._stop(launcher, each)
        return self.trials()

    def trials(self) -> list[SearchTrial]:
        """Return the trials that have records."""
        return [self._trials[number] for number in sorted(self._trials)]

    @property
    def _is_isolated(self) -> bool:
        """True where runs need OS processes: only those can be pruned, or be several at once."""
        return self.parallel > 1 or self.spec.pruner != "none"

    def _per_device(self) -> int:
        """Return how many runs share a device: on the CPU all that are to run at once."""
        if self.per_device or not self._is_isolated:
            return self.per_device
        wish = JobSpec(command=(), cwd="", device=self.launch.device or "auto")
        names = {device.name for device in wanted_devices(wish, this_machine().devices())}
        return self.parallel if names == {"cpu"} else 0

    def _work(self, study: Study, launcher: IsolatedLauncher, active: list[ActiveTrial]) -> None:
        """Start runs and end them until nothing is left to do."""
        while True:
            self._fill(study, launcher, active)
            self.watch(active)
            if not active and (self.is_stopped or not self._tasks):
                return
            self._await_end(active)
            for each in list(active):
                has_ended = each.has_ended()  # first: no point is logged after it
                self._look(study, each)
                if has_ended:
                    active.remove(each)
                    self._end(study, launcher, each)

    def _await_end(self, active: list[ActiveTrial]) -> None:
        """Wait until a run ends, for a moment at most."""
        children = [each.child for each in active if each.child is not None]
        if len(children) == len(active):  # else one was done in this process, and has ended
            with ends_of([child.holder for child in children]) as wait:
                wait(_LOOK_S)

    def _rebuild(self, study: Study) -> None:
        """Bring a new study to where the records are; queue the runs that were cut off."""
        recorded = self._trials = {
            trial.number: trial
            for trial in read_trials(self.project, self.sweep, self.spec.metrics)
        }
        keys = [axis.key for axis in self.plan.axes]
        for number in range(max(recorded, default=-1) + 1):
            trial = recorded.get(number)
            if trial is None:  # killed before its record was begun
                self._queue(study.ask(), number)
                continue
            self._queue(study.replay(recorded_values(trial, keys)), number, trial)
            if trial.is_ended(self.spec.seeds):
                for run in trial.runs.values():
                    self._report(study, number, run.view, 0)
                self._told.add(number)
                study.tell(number, trial.values(), is_pruned=trial.is_pruned)

    def _queue(self, point: Point, number: int, trial: SearchTrial | None = None) -> None:
        """Queue the runs of a trial that have not come to an end."""
        self.points[number] = point
        if trial is not None and trial.is_ended(self.spec.seeds):
            return
        own = sections_of(self.config.root).seed
        for seed in range(own, own + self.spec.seeds):
            run = trial.runs.get(seed) if trial is not None else None
            if run is None or not run.is_ended:
                self._tasks.append(TrialTask(number, seed, point, run.view if run else None))

    def _fill(self, study: Study, launcher: IsolatedLauncher, active: list[ActiveTrial]) -> None:
        """Start runs while fewer than `parallel` are at work, and a device is free."""
        while len(active) < self.parallel and not self.is_stopped:
            if not self._tasks:
                if len(self.points) >= self.spec.trials:
                    return
                self._queue(study.ask(), len(self.points))
            begun = self._start(launcher, self._tasks[0], active)
            if begun is None:
                return
            self._tasks.popleft()
            active.append(begun)

    def _start(
        self, launcher: IsolatedLauncher, task: TrialTask, active: list[ActiveTrial]
    ) -> ActiveTrial | None:
        """Begin a task, or do it in this process; None while no device is free."""
        launch = replace(self.launch, point=f"{task.number + 1}/{self.spec.trials}")
        config = at_point(self.config, task.point, seed=task.seed)
        if not self._is_isolated:
            self.watch([ActiveTrial(task)])
            result = train_trial(config, task.unfinished, launch)
            self.is_stopped = result.status == "stopped" or bool(result.signal)
            return ActiveTrial(task, result=result)
        resumed = task.unfinished
        name = f"{task.number}-{task.seed}-{time.monotonic_ns()}"
        path = str(resumed.path) if resumed is not None and resumed.checkpoints else ""
        child = launcher.start(name, config, launch, resumed=path)
        if child is not None:
            return ActiveTrial(task, child)
        if not active and not self._has_told_waiting:
            self._has_told_waiting = True
            self.warn(launcher.describe_holders())
        return None

    def _end(self, study: Study, launcher: IsolatedLauncher, ended: ActiveTrial) -> None:
        """Tell the study of a trial whose last run has ended."""
        number, seed = ended.task.number, ended.task.seed
        run = self._collect(launcher, ended)
        if run is not None:
            self.tell(run)
        if run is None or not run.is_ended:  # killed, or stopped by somebody else
            if ended.child is not None and not self.is_stopped:
                self.warn(f"trial {number + 1} left no result, {ended.error()}")
            self.lost.add((number, seed))
        lost = sum(1 for each, _ in self.lost if each == number)
        trial = self._trials.get(number, SearchTrial(number))
        is_ended = trial.is_ended(self.spec.seeds - lost)
        if is_ended and not self.is_stopped and number not in self._told:
            self._told.add(number)
            study.tell(number, trial.values(), is_pruned=trial.is_pruned)

    def _collect(self, launcher: IsolatedLauncher, ended: ActiveTrial) -> TrialRun | None:
        """Free the devices of a run that has ended; return it, and keep it in its trial."""
        number, seed = ended.task.number, ended.task.seed
        if ended.child is not None:
            ended.result = launcher.end(ended.child)
        assert ended.result is not None
        if ended.result.record_dir is None:
            return None
        view = RunView(ended.result.record_dir)
        if ended.is_pruned:
            edits.add_labels(view.folder, [PRUNED])
            view = RunView(view.path)
        run = read_trial(view, self.spec.metrics)
        if run is not None:
            self._trials.setdefault(number, SearchTrial(number)).runs[seed] = run
        return run

    def _stop(self, launcher: IsolatedLauncher, each: ActiveTrial) -> None:
        """End a run that is at work; it is resumed with its search."""
        if each.child is not None:
            launcher.stop(each.child, _PATIENCE_S)
            self._collect(launcher, each)

    def _look(self, study: Study, each: ActiveTrial) -> None:
        """Read what a run has measured, and end it when the study says so."""
        if each.child is None:
            return
        if each.is_pruned:
            each.prune()
            return
        view = RunView(each.run.view.path) if each.run is not None else each.child.record()
        each.run = read_trial(view, self.spec.metrics) if view is not None else None
        if each.run is None or self.spec.pruner == "none":
            return
        each.reported, each.is_pruned = self._report(
            study, each.task.number, each.run.view, each.reported
        )
        if each.is_pruned:
            each.prune()

    def _report(self, study: Study, number: int, view: RunView, reported: int) -> tuple[int, bool]:
        """Report the values past the first `reported`; return their number, and True to prune.

        The decision depends on the values in their order alone, never on when they were seen.
        """
        metric = self.spec.metrics[0][0]
        if self.spec.pruner == "none" or metric not in view.metrics:
            return reported, False
        values = view.metric(metric).values.tolist()
        for place in range(reported, len(values)):
            if study.report(number, place + 1, values[place]):
                return place + 1, True
        return len(values), False


def train_trial(config: Config, unfinished: RunView | None, launch: Launch) -> RunResult:
    """Train a trial in this OS process, from its checkpoint if it has one.

    A trial that fails has a record of it all the same.
    """
    if unfinished is not None and unfinished.checkpoints:
        return resume(str(unfinished.path), (), launch)
    return next(train_each([config], launch, records_all=True))
