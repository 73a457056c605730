"""Search for good hyper-parameters: a study proposes points, and runs measure them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from assay.compose import Launch, resume, train_each
from assay.config import Config, expand, open_config
from assay.config.expansion import at_point
from assay.config.sweep import Point, Sweep
from assay.config.tree import plain
from assay.config.typed_sections import sections_of
from assay.core import parent_death
from assay.core.errors import InputError
from assay.core.json_codec import dumps
from assay.jobs.study import SearchSpec, Study, make_study
from assay.jobs.trials import PRUNED, SearchTrial, TrialRun, read_trials, recorded_values
from assay.query.diff import written
from assay.query.run import RunView
from assay.record import edits
from assay.store.layout import Project

_TRIAL_COMMAND = "_trial"
_POLL_S = 0.1
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
    """Task with the OS process that does it; None when it was done in this one."""

    task: TrialTask
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None
    reported: int = 0
    is_pruned: bool = False

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self) -> None:
        """End the process with SIGTERM, after which its run is saved; with SIGKILL in the end."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        """Return the error that the process printed, with its exit code, and close its output."""
        assert self.process is not None and self.output is not None
        with self.output as output:
            output.seek(0)
            lines = output.read().decode("utf-8", "replace").strip().splitlines() or ["no output"]
        error = next((line for line in lines if line.startswith("error")), lines[-1])
        return f"exit code {self.process.returncode}: {error}"


@dataclass(slots=True, kw_only=True)
class Search:
    """Search over the points of `plan`, up to `spec.trials` trials, `parallel` runs at once.

    One run at a time trains in this OS process, several in one each. `tell` is called with each
    run that ended, `warn` with a line for one that left no result. `user_dirs` are those of the
    command line; `lost` the number and seed of runs without a result. `is_stopped` is True after
    Ctrl-C or a signal.
    """

    config: Config
    plan: Sweep
    spec: SearchSpec
    sweep: str
    project: Project
    launch: Launch
    parallel: int = 1
    user_dirs: tuple[str, ...] = ()
    tell: Callable[[TrialRun], None] = lambda run: None
    warn: Callable[[str], None] = lambda line: None
    is_stopped: bool = False
    points: dict[int, Point] = field(default_factory=dict)
    _tasks: deque[TrialTask] = field(default_factory=deque)
    _told: set[int] = field(default_factory=set)
    lost: set[tuple[int, int]] = field(default_factory=set)

    def run(self) -> list[SearchTrial]:
        """Run what is missing; return all trials. The records of earlier runs are kept."""
        self.launch = replace(self.launch, sweep=self.sweep, search=self.spec.recorded())
        study = make_study(self.spec, self.plan)
        self._rebuild(study)
        active: list[ActiveTrial] = []
        try:
            while True:
                self._fill(study, active)
                if not active:
                    return self.trials()
                for each in list(active):
                    has_ended = each.has_ended()  # first: no point is logged after it
                    self._prune(study, each)
                    if has_ended:
                        active.remove(each)
                        self._end(study, each)
                time.sleep(_POLL_S if active else 0.0)
        except KeyboardInterrupt:
            self.is_stopped = True
            return self.trials()
        finally:
            for each in active:
                each.stop()

    def trials(self) -> list[SearchTrial]:
        """Return the trials that have records."""
        return read_trials(self.project, self.sweep, self.spec.metrics)

    def _rebuild(self, study: Study) -> None:
        """Bring a new study to where the records are; queue the runs that were cut off."""
        recorded = {trial.number: trial for trial in self.trials()}
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

    def _fill(self, study: Study, active: list[ActiveTrial]) -> None:
        while len(active) < self.parallel and not self.is_stopped:
            if not self._tasks:
                if len(self.points) >= self.spec.trials:
                    return
                self._queue(study.ask(), len(self.points))
            active.append(self._start(self._tasks.popleft()))

    def _start(self, task: TrialTask) -> ActiveTrial:
        launch = replace(self.launch, point=f"{task.number + 1}/{self.spec.trials}")
        if self.parallel > 1 or self.spec.pruner != "none":
            return _begin_process(self.config, self.user_dirs, task, launch)
        self.is_stopped = do_task(self._configured(task), task.unfinished, launch)
        return ActiveTrial(task)

    def _configured(self, task: TrialTask) -> Config:
        return at_point(self.config, task.point, seed=task.seed)

    def _end(self, study: Study, ended: ActiveTrial) -> None:
        """Tell the study of a trial whose last run has ended."""
        number, seed = ended.task.number, ended.task.seed
        trial = self._trial(number)
        run = trial.runs.get(seed)
        if run is not None and ended.is_pruned:
            edits.add_labels(run.view.folder, [PRUNED])
            trial = self._trial(number)
            run = trial.runs[seed]
        if run is not None:
            self.tell(run)
        if run is None or not run.is_ended:  # killed, or stopped by somebody else
            if ended.process is not None and not self.is_stopped:
                self.warn(f"trial {number + 1} left no result, {ended.last_words()}")
            self.lost.add((number, seed))
        lost = sum(1 for each, _ in self.lost if each == number)
        is_ended = trial.is_ended(self.spec.seeds - lost)
        if is_ended and not self.is_stopped and number not in self._told:
            self._told.add(number)
            study.tell(number, trial.values(), is_pruned=trial.is_pruned)

    def _trial(self, number: int) -> SearchTrial:
        found = (trial for trial in self.trials() if trial.number == number)
        return next(found, SearchTrial(number))

    def _prune(self, study: Study, each: ActiveTrial) -> None:
        """Report new values of the metric, and end the run when the study says so."""
        if self.spec.pruner == "none" or each.is_pruned:
            return
        run = self._trial(each.task.number).runs.get(each.task.seed)
        if run is None:
            return
        each.reported, each.is_pruned = self._report(
            study, each.task.number, run.view, each.reported
        )
        if each.is_pruned:
            each.stop()

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


def do_task(config: Config, unfinished: RunView | None, launch: Launch) -> bool:
    """Train a trial in this OS process, from its checkpoint if it has one; True if it was stopped.

    A trial that fails has a record of it all the same.
    """
    if unfinished is not None and unfinished.checkpoints:
        result = resume(str(unfinished.path), (), launch)
    else:
        result = next(train_each([config], launch, records_all=True))
    return result.status == "stopped" or bool(result.signal)


def _begin_process(
    config: Config, user_dirs: Sequence[str], task: TrialTask, launch: Launch
) -> ActiveTrial:
    """Start an OS process that does a task; it ends with this one, even when that is killed."""
    if config.path is None:
        raise InputError("Trials in OS processes need a config file.", fix="leave --parallel out")
    told = {
        "parent": parent_death.main_pid(),
        "file": str(config.path),
        "overrides": [*config.overrides, *_overrides(task)],
        "variant": config.variant,
        "user_dirs": list(user_dirs),
        "files": dict(config.files),
        "unfinished": str(task.unfinished.path) if task.unfinished is not None else "",
        "launch": asdict(launch),
    }
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the trial
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", _TRIAL_COMMAND],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        process_group=0,  # Ctrl-C is for the search, which then ends its runs
    )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(dumps(told).encode())
    return ActiveTrial(task, process, output)


def _overrides(task: TrialTask) -> list[str]:
    values = [f"{axis.key}={_literal(plain(node), written(node))}" for axis, node in task.point]
    return [*values, f"seed={task.seed}"]


def _literal(value: Any, text: str | None) -> str:
    return repr(value) if isinstance(value, float) else text or "none"


def do_trial() -> int:
    """Do the task on stdin; the exit code. InputError when the config has changed since."""
    told: Mapping[str, Any] = json.load(sys.stdin)
    if told["parent"]:
        parent_death.end_with(told["parent"])
    config = open_config(told["file"], told["overrides"], user_dir=told["user_dirs"] or None)
    if dict(config.files) != told["files"]:
        raise InputError("The config has changed since the search began.", where=told["file"])
    if told["variant"]:
        (config,) = expand(config, [told["variant"]], sweep=False)
    view = RunView(Path(told["unfinished"])) if told["unfinished"] else None
    launch = Launch(**{**told["launch"], "command": tuple(told["launch"]["command"])})
    return int(do_task(config, view, launch))
