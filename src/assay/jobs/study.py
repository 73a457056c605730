"""Studies: engines that propose the next point of a search. The state lies in the records."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol, get_args

from assay.config.sweep import Interval, Point, Sweep, SweepAxis
from assay.config.tree import Leaf, plain
from assay.core.errors import InputError, MissingExtraError

ListedSampler = Literal["grid", "zip", "random"]
AdaptiveSampler = Literal["tpe", "cma-es", "nsga2"]
Direction = Literal["min", "max"]

LISTED: tuple[str, ...] = get_args(ListedSampler)
ADAPTIVE: tuple[str, ...] = get_args(AdaptiveSampler)
_WORST = 1e30  # finite: samplers add values and subtract them


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """Settings of a search, recorded with each of its runs so that it is resumed from them.

    `metrics` are names with "min" or "max"; `seeds` is the number of repeats of each point.
    """

    sampler: str
    trials: int
    metrics: tuple[tuple[str, Direction], ...]
    pruner: str = "none"
    seed: int = 0
    seeds: int = 1

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the launch metadata of a run."""
        return {
            "sampler": self.sampler,
            "trials": self.trials,
            "metrics": [list(metric) for metric in self.metrics],
            "pruner": self.pruner,
            "seed": self.seed,
            "seeds": self.seeds,
        }

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> SearchSpec:
        """Return the settings that `to_record` wrote."""
        metrics = tuple((name, direction) for name, direction in recorded["metrics"])
        return cls(**{**recorded, "metrics": metrics})


class Study(Protocol):
    """Source of points. Trials are numbered from 0, and asked for in order."""

    def ask(self) -> Point:
        """Return the point of the next trial."""
        ...

    def replay(self, values: Mapping[str, Any]) -> Point:
        """Take a recorded trial as the next one; `values` by key of the config."""
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

    points: Sequence[Point]
    next: int = 0

    def ask(self) -> Point:
        self.next += 1
        return self.points[self.next - 1]

    def replay(self, values: Mapping[str, Any]) -> Point:
        return self.ask()

    def report(self, number: int, step: int, value: float) -> bool:
        return False

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool) -> None:
        """Points do not depend on results."""


@dataclass(slots=True)
class OptunaStudy:
    """Study of Optuna in memory.

    Each trial draws from a generator of its own, seeded by the search's seed and the trial's
    number: a study rebuilt from records proposes the same points.
    """

    spec: SearchSpec
    axes: tuple[SweepAxis, ...]
    _trials: list[Any] = field(default_factory=list)
    _study: Any = None

    def __post_init__(self) -> None:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        directions = ["maximize" if mode == "max" else "minimize" for _, mode in self.spec.metrics]
        self._study = optuna.create_study(
            study_name="search",  # Hyperband draws the bracket of a trial from it
            directions=directions,
            pruner=_pruner(self.spec),
        )

    def ask(self) -> Point:
        self._study.sampler = _sampler(self.spec, len(self._trials))
        trial = self._study.ask()
        # A trial with given values skips the sampler, and CMA-ES keeps its state in the trials.
        # optuna 5.0: without this a rebuilt study begins with another population.
        _ = trial.relative_params
        self._trials.append(trial)
        return tuple((axis, _suggest(trial, axis)) for axis in self.axes)

    def replay(self, values: Mapping[str, Any]) -> Point:
        params = {axis.key: _parameter_of(axis, values[axis.key]) for axis in self.axes}
        self._study.enqueue_trial(params)
        return self.ask()

    def report(self, number: int, step: int, value: float) -> bool:
        trial = self._trials[number]
        trial.report(value, step)
        return bool(trial.should_prune())

    def tell(self, number: int, values: Sequence[float] | None, *, is_pruned: bool) -> None:
        states = _optuna().trial.TrialState
        trial = self._trials[number]
        if is_pruned:
            self._study.tell(trial, state=states.PRUNED)
        elif values is None:
            self._study.tell(trial, state=states.FAIL)
        else:
            self._study.tell(trial, list(map(_finite_value, values, self.spec.metrics)))


def _finite_value(value: float, metric: tuple[str, Direction]) -> float:
    """Return a value that samplers learn from: of a trial that diverged, one worse than any other.

    optuna 5.0 takes a nan for a trial that failed, from which no sampler learns.
    """
    worst = -_WORST if metric[1] == "max" else _WORST
    return value if abs(value) < _WORST else worst


def make_study(spec: SearchSpec, plan: Sweep) -> Study:
    """Return the study of a search; MissingExtraError without Optuna where it is the engine."""
    if spec.sampler in LISTED:
        if spec.pruner != "none":
            fix = "give --sampler tpe, or leave --pruner out"
            raise InputError(f"--pruner {spec.pruner} needs an adaptive sampler.", fix=fix)
        return ListedStudy(list(islice(plan.points(), spec.trials)))
    if len(spec.metrics) > 1 and spec.pruner != "none":
        raise InputError("A search of several metrics prunes nothing.", fix="leave --pruner out")
    if len(spec.metrics) > 1 and spec.sampler == "cma-es":
        raise InputError("CMA-ES optimizes one metric.", fix="give --sampler nsga2 or tpe")
    return OptunaStudy(spec, plan.axes)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("an adaptive search", extra="optuna") from None
    return optuna


def _sampler(spec: SearchSpec, number: int) -> Any:
    samplers = _optuna().samplers
    digest = hashlib.sha256(f"{spec.seed}:{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    if spec.sampler == "cma-es":
        if importlib.util.find_spec("cmaes") is None:
            raise MissingExtraError("CMA-ES", extra="optuna")
        return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    if spec.sampler == "nsga2":
        return samplers.NSGAIISampler(seed=seed)
    return samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(1, spec.trials // 3)))


def _pruner(spec: SearchSpec) -> Any:
    pruners = _optuna().pruners
    match spec.pruner:
        case "asha":
            return pruners.SuccessiveHalvingPruner(min_resource=1)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=1, max_resource=27)
        case "median":
            return pruners.MedianPruner(n_startup_trials=3)
        case _:
            return pruners.NopPruner()


def _suggest(trial: Any, axis: SweepAxis) -> Any:
    """Return the value that a trial proposes for an axis, as a node of the config."""
    if axis.range is None:
        return axis.values[trial.suggest_categorical(axis.key, list(range(len(axis.values))))]
    interval: Interval = axis.range
    suggest = trial.suggest_int if interval.is_whole else trial.suggest_float
    return Leaf(
        suggest(axis.key, interval.low, interval.high, log=interval.is_log), interval.origin
    )


def _parameter_of(axis: SweepAxis, value: Any) -> Any:
    """Return a recorded value as Optuna's parameter: the place in a list, or the number."""
    if axis.range is not None:
        return value
    places = [i for i, node in enumerate(axis.values) if plain(node) == value]
    if not places:
        fix = "resume with the [sweep] that the search began with"
        raise InputError(f"`{axis.key}` = {value!r} is no value of the sweep any more.", fix=fix)
    return places[0]
