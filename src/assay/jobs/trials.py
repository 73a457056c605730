"""Trials of a search as the records have them: the only state that a search keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.config.overrides import setting_of
from assay.config.tree import plain
from assay.core.errors import AssayError, InputError
from assay.core.job import classify
from assay.jobs.study import SearchSpec
from assay.query.catalog import Asked, open_catalog
from assay.query.run import RunView
from assay.query.run_row import RunRow
from assay.query.sweep_summary import SweepRun, score_of
from assay.store.layout import Project

PRUNED = "pruned"
"""Label of a run that its search ended early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """One run of a trial, which has one for each seed.

    `scores` follow the metrics of the search, None for a metric that the run does not have. `step`
    is the last one logged.
    """

    view: RunView
    number: int
    seed: int
    status: str
    scores: tuple[float | None, ...]
    cause: str
    step: int = 0

    @property
    def is_ended(self) -> bool:
        """False for a run that was cut off: it is resumed or repeated."""
        return self.status in ("finished", "failed", PRUNED)

    @property
    def counted_scores(self) -> tuple[float | None, ...] | None:
        """Scores that count: nan for each if the run diverged, None if it failed otherwise."""
        if self.status == "failed" and classify(None, 0, self.cause) == "nan":
            return (math.nan,) * len(self.scores)
        return self.scores if self.status == "finished" else None


@dataclass(slots=True)
class SearchTrial:
    """Trial of a search: its runs by seed, the newest run where a seed has several."""

    number: int
    runs: dict[int, TrialRun] = field(default_factory=dict)

    @property
    def is_pruned(self) -> bool:
        return any(run.status == PRUNED for run in self.runs.values())

    def is_ended(self, seeds: int) -> bool:
        """Return True if each of `seeds` repeats came to an end, or one of them was pruned."""
        ended = [run for run in self.runs.values() if run.is_ended]
        return self.is_pruned or len(ended) >= seeds

    def values(self) -> list[float] | None:
        """Return the mean of each metric over the repeats that count; None if there is none.

        It is not finite where one of them diverged.
        """
        measured = [
            scores for run in self.runs.values() if (scores := run.counted_scores) is not None
        ]
        means = []
        for scores in zip(*measured, strict=True):
            known = [score for score in scores if score is not None]
            if not known:
                return None
            means.append(sum(known) / len(known))
        return means or None


def read_trials(
    project: Project, sweep: str, metrics: Sequence[tuple[str, Any]]
) -> list[SearchTrial]:
    """Return the trials of a sweep by number, from its records."""
    trials: dict[int, SearchTrial] = {}
    for row in _rows_of_sweep(project, sweep):
        run = read_trial(RunView(row.path), metrics)
        if run is not None:
            trial = trials.setdefault(run.number, SearchTrial(run.number))
            trial.runs[run.seed] = run  # the oldest first: the newest stays
    return [trials[number] for number in sorted(trials)]


def _rows_of_sweep(project: Project, sweep: str) -> list[RunRow]:
    """Return the runs of a sweep, the oldest first."""
    asked = Asked(where=f'sweep = "{sweep}"', sort=("created",), archived=True)
    return [row for row in open_catalog(project).select(asked).rows() if row is not None]


def read_trial(view: RunView, metrics: Sequence[tuple[str, Any]]) -> TrialRun | None:
    """Return a run as part of its trial; None for a damaged record."""
    try:
        first = view.file.attempts[0]
        point = str(first.launch["point"])
        summaries = view.summaries
        status = PRUNED if PRUNED in view.labels else view.status
        return TrialRun(
            view=view,
            number=int(point.partition("/")[0]) - 1,
            seed=int(first.seeds.get("seed", 0)),
            status=status,
            scores=tuple(score_of(summaries, {}, name, mode) for name, mode in metrics),
            cause=view.file.newest.reason,
            step=view.last_step,
        )
    except (AssayError, LookupError, ValueError):
        return None


def read_spec(project: Project, sweep: str) -> SearchSpec:
    """Return the settings of a recorded search; InputError when no run has this sweep."""
    for row in _rows_of_sweep(project, sweep):
        launch = RunView(row.path).file.attempts[0].launch
        if recorded := launch.get("search"):
            return SearchSpec.of(recorded)
    raise InputError(f"There is no search `{sweep}`.", fix="assay ls --columns sweep,point,tag")


def recorded_values(trial: SearchTrial, keys: Sequence[str]) -> dict[str, Any]:
    """Return the values that a trial set, from the saved config of its run."""
    run = next(iter(trial.runs.values()))
    return {key: _value_at(plain(run.view.config), key) for key in keys}


def _value_at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in setting_of(f"{key}=0").parts:
        value = value[part]
    return value


def sweep_runs(
    trials: Sequence[SearchTrial], shown: Mapping[int, Mapping[str, str]]
) -> list[SweepRun]:
    """Return the runs for the table of a sweep; `shown` are the values of each trial as text."""
    return [
        SweepRun(
            id=run.view.id,
            status=run.status,
            values=shown[trial.number],
            score=run.scores[0],
            cause="" if run.status in ("finished", PRUNED) else run.cause,
            seed=run.seed,
        )
        for trial in trials
        for _, run in sorted(trial.runs.items())
    ]
