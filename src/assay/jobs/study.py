"""Studies: sources of the next point of a search. Those of Optuna keep their state in a journal."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from assay.config.sweep import Point, Sweep, SweepAxis
from assay.config.tree import Leaf, Node
from assay.core.errors import InputError, MissingExtraError
from assay.jobs.search_plan import SearchMetric, SearchPlan

AdaptiveSampler = Literal["tpe", "cma-es", "nsga2"]

ADAPTIVE: tuple[str, ...] = get_args(AdaptiveSampler)
_WORST = 1e30  # finite: samplers add values and subtract them


class Study(Protocol):
    """Source of points. Trials are numbered from 0; a study knows those of earlier processes."""

    def points(self) -> list[Point]:
        """Return the points proposed so far."""
        ...

    def ask(self) -> Point:
        """Propose the point of the next trial."""
        ...

    def is_told(self, number: int) -> bool:
        """Return whether the end of a trial is known."""
        ...

    def report(self, number: int, step: int, value: float) -> bool:
        """Note an intermediate value; return True if the trial is to be pruned."""
        ...

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool) -> None:
        """Note the end of a trial; None for one that failed.

        A value that is not finite is the worst that there can be.
        """
        ...


@dataclass(slots=True)
class ListedStudy:
    """Points that are known before the first trial: a grid, a zip or random draws."""

    listed: Sequence[Point]
    count: int = 0

    def points(self) -> list[Point]:
        return list(self.listed[: self.count])

    def ask(self) -> Point:
        self.count += 1
        return self.listed[self.count - 1]

    def is_told(self, number: int) -> bool:
        return False

    def report(self, number: int, step: int, value: float) -> bool:
        return False

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool) -> None:
        """Points do not depend on results."""


@dataclass(slots=True)
class OptunaStudy:
    """Study of Optuna, whose state is a journal on the disk.

    Each value is drawn from a generator of its own, seeded by the search's seed, the trial's number
    and the key: a process that goes on after another was killed proposes the same points.
    """

    plan: SearchPlan
    axes: tuple[SweepAxis, ...]
    journal: Path
    _study: Any = None
    _points: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        journal = optuna.storages.journal
        _cut_torn_line(self.journal)
        # The lock of the search keeps all others out.
        backend = journal.JournalFileBackend(str(self.journal), lock_obj=_NoLock())
        self._study = optuna.create_study(
            study_name="search",  # Hyperband draws the bracket of a trial from it
            storage=optuna.storages.JournalStorage(backend),
            load_if_exists=True,
            directions=[_DIRECTIONS[metric.mode] for metric in self.plan.metrics],
            pruner=_pruner(self.plan),
        )
        self._points = [self._suggest(number) for number in range(len(self._trials()))]

    def points(self) -> list[Point]:
        return list(self._points)

    def ask(self) -> Point:
        number = len(self._points)
        self._study.sampler = _sampler(self.plan, f"{number}")
        self._study.ask()
        self._points.append(self._suggest(number))
        return self._points[-1]

    def is_told(self, number: int) -> bool:
        return bool(self._trials()[number].state.is_finished())

    def report(self, number: int, step: int, value: float) -> bool:
        trial = self._trial(number)
        known = self._trials()[number].intermediate_values
        if step not in known:
            trial.report(value, step)
        elif step < max(known):
            return False  # it went on after that one
        return bool(trial.should_prune())

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool) -> None:
        states = _optuna().trial.TrialState
        if is_pruned:
            self._study.tell(number, state=states.PRUNED)
        elif values is None:
            self._study.tell(number, state=states.FAIL)
        else:
            finite = map(_finite_value, values, self.plan.metrics)
            self._study.tell(number, list(finite))

    def _suggest(self, number: int) -> Point:
        """Return the point of a trial; draw what was not drawn before a process was killed."""
        known = dict(self._trials()[number].params)
        missing = [axis for axis in self.axes if axis.key not in known]
        if missing:
            self._study.sampler = _sampler(self.plan, f"{number}")
            trial = self._trial(number)
            _ = trial.relative_params  # those that are drawn together
            for axis in missing:
                self._study.sampler = _sampler(self.plan, f"{number}:{axis.key}")
                known[axis.key] = _draw(trial, axis)
        return tuple((axis, _node(axis, known[axis.key])) for axis in self.axes)

    def _trials(self) -> list[Any]:
        return list(self._study.get_trials(deepcopy=False))

    def _trial(self, number: int) -> Any:
        # Optuna makes one from the storage's own id, for a study that was loaded (5.0).
        return _optuna().trial.Trial(self._study, self._trials()[number]._trial_id)


_DIRECTIONS = {"max": "maximize", "min": "minimize"}


class _NoLock:
    """Lock of a journal that nobody else has open."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _cut_torn_line(journal: Path) -> None:
    """Cut what a process that was killed had begun to write: Optuna refuses to read on after it."""
    if not journal.exists():
        return
    with open(journal, "r+b") as file:
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
        os.fsync(file.fileno())


def _finite_value(value: float, metric: SearchMetric) -> float:
    """Return a value that samplers learn from: of a trial that diverged, one worse than any other.

    optuna 5.0 takes a nan for a trial that failed, from which no sampler learns.
    """
    worst = -_WORST if metric.mode == "max" else _WORST
    return value if abs(value) < _WORST else worst


def make_study(plan: SearchPlan, sweep: Sweep, journal: Path) -> Study:
    """Return the study of a search; MissingExtraError without Optuna where it is the engine."""
    if plan.sampler in ADAPTIVE:
        return OptunaStudy(plan, sweep.axes, journal)
    return ListedStudy(list(islice(sweep.points(), plan.trials)))


def refuse_plan(plan: SearchPlan) -> None:
    """Raise InputError for settings that do not go together, MissingExtraError without Optuna."""
    if plan.sampler not in ADAPTIVE:
        if plan.pruner != "none":
            fix = "give --sampler tpe, or leave --pruner out"
            raise InputError(f"--pruner {plan.pruner} needs an adaptive sampler.", fix=fix)
        return
    if len(plan.metrics) > 1 and plan.pruner != "none":
        raise InputError("A search of several metrics prunes nothing.", fix="leave --pruner out")
    if len(plan.metrics) > 1 and plan.sampler == "cma-es":
        raise InputError("CMA-ES optimizes one metric.", fix="give --sampler nsga2 or tpe")
    _sampler(plan, "")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("an adaptive search", extra="optuna") from None
    return optuna


def _sampler(plan: SearchPlan, place: str) -> Any:
    samplers = _optuna().samplers
    digest = hashlib.sha256(f"{plan.search_seed}:{place}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    if plan.sampler == "cma-es":
        if importlib.util.find_spec("cmaes") is None:
            raise MissingExtraError("CMA-ES", extra="optuna")
        return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if plan.sampler == "nsga2":
        return samplers.NSGAIISampler(seed=seed)
    return samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(1, plan.trials // 3)))


def _pruner(plan: SearchPlan) -> Any:
    pruners = _optuna().pruners
    match plan.pruner:
        case "asha":
            return pruners.SuccessiveHalvingPruner(min_resource=1)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=1, max_resource=27)
        case "median":
            return pruners.MedianPruner(n_startup_trials=3)
        case _:
            return pruners.NopPruner()


def _draw(trial: Any, axis: SweepAxis) -> Any:
    """Return the number that a trial proposes for an axis, or the place in its list of values."""
    if axis.range is None:
        return trial.suggest_categorical(axis.key, list(range(len(axis.values))))
    suggest = trial.suggest_int if axis.range.is_whole else trial.suggest_float
    return suggest(axis.key, axis.range.low, axis.range.high, log=axis.range.is_log)


def _node(axis: SweepAxis, value: Any) -> Node:
    """Return what `_draw` proposed as a node of the config."""
    return axis.values[value] if axis.range is None else Leaf(value, axis.range.origin)
