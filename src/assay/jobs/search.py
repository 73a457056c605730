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
from dataclasses import dataclass, field
from functools import partial

from assay.compose import Launch, RunResult, resume, train_each
from assay.config import Config
from assay.config.standard_keys import sections_of
from assay.config.sweep import Point, text_of_point
from assay.core.job import JobSpec
from assay.core.signals import Signals, Terminated, answering, number_of
from assay.jobs.devices import this_machine, wanted_devices
from assay.jobs.isolated_process import CrashError, IsolatedLauncher, IsolatedProcess
from assay.jobs.search_plan import SearchFolder, SearchPlan
from assay.jobs.study import Study, make_study
from assay.jobs.trials import PRUNED, SearchTrial, TrialRun, read_trial, read_trials
from assay.query.run import RunView
from assay.record import edits
from assay.store.layout import Project

_LOOK_S = 0.5
"""Seconds between two looks at the metrics of runs, and between two tries to lease a device."""
_MOST_KILLS = 3
"""So often a run that somebody kills is resumed at once; then it waits for the next resume."""


@dataclass(frozen=True, slots=True)
class TrialTask:
    """One run that is to be made: a trial under one seed; `unfinished` is what is left of it."""

    number: int
    repeat: int
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

    def has_ended(self) -> bool:
        return self.child is None or self.child.has_ended()

    def error(self) -> str:
        """Return the error of a run that left no result, with its exit code."""
        assert self.result is not None
        lines = str(self.result.exception or "no output").strip().splitlines()
        error = next((line.strip() for line in lines if "error" in line), lines[0])
        return f"exit code {self.result.exit_code}: {error}"


@dataclass(slots=True, kw_only=True)
class Search:
    """Search by a plan, `parallel` runs at once.

    One run at a time trains in this OS process, several in one each, on devices that they lease;
    `per_device` of them share one. `tell` is called with each run that ended, `watch` with the runs
    at work whenever one may have moved, `warn` with a line for people. `repeats` are the trials
    whose point is that of an earlier one, which is measured once. `lost` is the number and repeat
    of runs without a result. `heard` is the signal that ended the search, 0 without one.
    """

    config: Config
    plan: SearchPlan
    sweep: str
    project: Project
    launch: Launch
    tell: Callable[[TrialRun], None] = lambda run: None
    watch: Callable[[list[ActiveTrial]], None] = lambda active: None
    warn: Callable[[str], None] = lambda line: None
    heard: int = 0
    points: dict[int, Point] = field(default_factory=dict)
    repeats: dict[int, int] = field(default_factory=dict)
    lost: set[tuple[int, int]] = field(default_factory=set)
    trials: dict[int, SearchTrial] = field(default_factory=dict)
    _first: dict[str, int] = field(default_factory=dict)
    _kills: dict[tuple[int, int], int] = field(default_factory=dict)
    _tasks: deque[TrialTask] = field(default_factory=deque)
    _active: list[ActiveTrial] = field(default_factory=list)
    _has_told_waiting: bool = False

    def run(self) -> dict[int, SearchTrial]:
        """Freeze the plan, and run what is missing; return all trials."""
        folder = SearchFolder.of(self.project, self.sweep)
        launcher = IsolatedLauncher(per_device=self._per_device())
        if self._is_isolated:
            launcher.check_devices(self.launch)
        with folder.hold(), launcher if self._is_isolated else nullcontext():
            folder.write(self.plan)
            study = make_study(self.plan, self.plan.sweep_of(self.config), folder.journal)
            # A run in this process answers signals itself.
            hear = partial(self._hear, launcher)
            with answering(hear) if self._is_isolated else nullcontext():
                try:
                    self._rebuild(study)
                    self._work(study, launcher)
                except (KeyboardInterrupt, Terminated) as error:
                    self.heard = number_of(error)
        return self.trials

    @property
    def _is_isolated(self) -> bool:
        """True where runs need OS processes: only those can be pruned, or be several at once."""
        return self.plan.parallel > 1 or self.plan.pruner != "none"

    def _per_device(self) -> int:
        """Return how many runs share a device: on the CPU all that are to run at once."""
        if self.plan.per_device or not self._is_isolated:
            return self.plan.per_device
        wish = JobSpec(command=(), cwd="", device=self.launch.device or "auto")
        names = {device.name for device in wanted_devices(wish, this_machine().devices())}
        return self.plan.parallel if names == {"cpu"} else 0

    def _hear(self, launcher: IsolatedLauncher, signals: Signals, number: int) -> None:
        """Let the runs at work save and end; a second signal kills them."""
        self.heard = self.heard or number
        launcher.ask_all_to_end(at_once=len(signals.heard) > 1)

    def _work(self, study: Study, launcher: IsolatedLauncher) -> None:
        """Start runs and end them until nothing is left to do."""
        while True:
            self._fill(study, launcher)
            self.watch(self._active)
            if not self._active and (self.heard or not self._tasks):
                return
            # A run that was done in this process has ended already.
            if all(each.child is not None for each in self._active):
                launcher.await_end(_LOOK_S)
            if self.heard:
                launcher.ask_all_to_end()  # one may have begun while the signal came
            for each in list(self._active):
                has_ended = each.has_ended()  # first: no point is logged after it
                self._look(study, each)
                if has_ended:
                    self._active.remove(each)
                    self._end(study, launcher, each)

    def _rebuild(self, study: Study) -> None:
        """Take up the trials that the study and the records know; queue what was cut off."""
        self.trials.update(read_trials(self.project, self.sweep, self.plan.metrics))
        while len(study.points()) <= max(self.trials, default=-1):
            study.ask()
        for number, point in enumerate(study.points()):
            self._queue(study, number, point)

    def _queue(self, study: Study, number: int, point: Point) -> None:
        """Queue the runs of a trial that have not come to an end; tell the study of one that has.

        A point that was proposed before is one observation: its trial is not trained again.
        """
        self.points[number] = point
        first = self._first.setdefault(text_of_point(point), number)
        if first != number:
            self.repeats[number] = first
            self._tell_repeats(study, first)
            return
        trial = self.trials.get(number)
        if trial is not None and trial.is_ended(self.plan.seeds):
            for each in trial.runs.values():
                self._report(study, number, each.view, 0)
            self._tell_end(study, number)
            return
        known = trial.runs if trial is not None else {}
        for repeat in range(self.plan.seeds):
            config = self.plan.config_at(self.config, point, repeat)
            before = known.get(sections_of(config.root).seed)
            if before is None or not before.is_ended:
                left = before.view if before is not None else None
                self._tasks.append(TrialTask(number, repeat, left))

    def _fill(self, study: Study, launcher: IsolatedLauncher) -> None:
        """Start runs while fewer than `parallel` are at work, and a device is free."""
        while len(self._active) < self.plan.parallel and not self.heard:
            if not self._tasks:
                if len(self.points) >= self.plan.trials:
                    return
                number = len(self.points)
                self._queue(study, number, study.ask())
                if (first := self.repeats.get(number)) is not None:
                    self.warn(f"trial {number + 1} is the point of trial {first + 1} again")
                continue
            begun = self._start(launcher, self._tasks[0])
            if begun is None:
                return
            self._tasks.popleft()
            self._active.append(begun)

    def _start(self, launcher: IsolatedLauncher, task: TrialTask) -> ActiveTrial | None:
        """Begin a task, or do it in this process; None while no device is free."""
        launch = self.plan.launch(self.launch, sweep=self.sweep, number=task.number)
        config = self.plan.config_at(self.config, self.points[task.number], task.repeat)
        resumed = task.unfinished
        if resumed is not None and not resumed.checkpoints:
            resumed = None
        if not self._is_isolated:
            self.watch([ActiveTrial(task)])
            result = train_trial(config, resumed, launch)
            self.heard = result.signal or (signal.SIGINT if result.status == "stopped" else 0)
            return ActiveTrial(task, result=result)
        name = f"{task.number}-{task.repeat}-{time.monotonic_ns()}"
        path = str(resumed.path) if resumed is not None else ""
        child = launcher.start(name, config, launch, resumed=path)
        if child is not None:
            return ActiveTrial(task, child)
        if not self._active and not self._has_told_waiting:
            self._has_told_waiting = True
            self.warn(launcher.describe_holders())
        return None

    def _end(self, study: Study, launcher: IsolatedLauncher, ended: ActiveTrial) -> None:
        """Tell the study of a trial whose last run has ended; begin one that was killed again."""
        number, repeat = ended.task.number, ended.task.repeat
        run = self._collect(launcher, ended)
        if run is not None:
            self.tell(run)
        if self.heard:
            return
        if run is None or not run.is_ended:  # killed, or stopped by somebody else
            assert ended.result is not None
            kills = self._kills[number, repeat] = self._kills.get((number, repeat), 0) + 1
            error = ended.result.exception
            was_killed = isinstance(error, CrashError) and error.signal == signal.SIGKILL
            if was_killed and kills <= _MOST_KILLS:
                view = run.view if run is not None else None
                self._tasks.appendleft(TrialTask(number, repeat, view))
                self.warn(f"trial {number + 1} is begun again, {ended.error()}")
                return
            self.warn(f"trial {number + 1} left no result, {ended.error()}")
            self.lost.add((number, repeat))
        if (trial := self.trials.get(number)) is not None and trial.is_ended(self.plan.seeds):
            self._tell_end(study, number)

    def _tell_end(self, study: Study, number: int) -> None:
        """Tell the study of the end of a trial, and of those that proposed the same point."""
        trial = self.trials[number]
        if not study.is_told(number):
            study.tell(number, trial.values(), is_pruned=trial.is_pruned)
        self._tell_repeats(study, number)

    def _tell_repeats(self, study: Study, first: int) -> None:
        trial = self.trials.get(first)
        if trial is None or not trial.is_ended(self.plan.seeds):
            return
        for number in [each for each, of in self.repeats.items() if of == first]:
            if not study.is_told(number):
                study.tell(number, trial.values(), is_pruned=trial.is_pruned)

    def _collect(self, launcher: IsolatedLauncher, ended: ActiveTrial) -> TrialRun | None:
        """Free the devices of a run that has ended; return it, and keep it in its trial."""
        if ended.child is not None:
            ended.result = launcher.end(ended.child)
        assert ended.result is not None
        if ended.result.record_dir is None:
            return None
        view = RunView(ended.result.record_dir)
        if ended.is_pruned:
            edits.add_labels(view.folder, [PRUNED])
            view = RunView(view.path)
        run = read_trial(view, self.plan.metrics)
        if run is not None:
            number = ended.task.number
            self.trials.setdefault(number, SearchTrial(number)).runs[run.seed] = run
        return run

    def _look(self, study: Study, each: ActiveTrial) -> None:
        """Read what a run has measured, and end it when the study says so."""
        if each.child is None:
            return
        if each.is_pruned:
            each.child.ask_to_end()
        if each.is_pruned or self.heard:
            return
        view = RunView(each.run.view.path) if each.run is not None else each.child.record()
        each.run = read_trial(view, self.plan.metrics) if view is not None else None
        if each.run is None or self.plan.pruner == "none":
            return
        each.reported, each.is_pruned = self._report(
            study, each.task.number, each.run.view, each.reported
        )
        if each.is_pruned:
            each.child.ask_to_end()

    def _report(self, study: Study, number: int, view: RunView, reported: int) -> tuple[int, bool]:
        """Report the values past the first `reported`; return their number, and True to prune.

        The decision depends on the values in their order alone, never on when they were seen.
        """
        metric = self.plan.metrics[0].name
        if self.plan.pruner == "none" or metric not in view.metrics or study.is_told(number):
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
    if unfinished is not None:
        return resume(str(unfinished.path), (), launch)
    return next(train_each([config], launch, records_all=True))
