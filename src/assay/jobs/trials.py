"""Trials of a search as their records have them: values, scores and ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from assay.config.sweep import Point
from assay.config.tree import Node
from assay.core.errors import AssayError
from assay.core.job import classify
from assay.jobs.search_plan import SearchMetric
from assay.query.catalog import Asked, open_catalog
from assay.query.run import RunView
from assay.query.sweep_summary import SweepRun, scores_of, spell_values, values_at
from assay.store.layout import Project

PRUNED = "pruned"
"""Label of a run that its search ended early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """One run of a trial, which has one for each seed.

    `scores` follow the metrics of the search, None for a metric that the run does not have, and
    `score_step` is where they were measured. `step` is the last one logged.
    """

    view: RunView
    number: int
    seed: int
    status: str
    scores: tuple[float | None, ...]
    cause: str
    score_step: int | None = None
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

    def set_values(self, point: Point) -> dict[str, Node]:
        """Return the values that the record of the run has at the keys of a point, by key."""
        places = [(axis.setting.parts, node) for axis, node in point]
        return values_at(self.view.config_tree, places)

    def shown_values(self, point: Point) -> dict[str, str]:
        """Return the same as text."""
        return spell_values(self.set_values(point))


@dataclass(slots=True)
class SearchTrial:
    """Trial of a search: its runs by seed, the newest run where a seed has several."""

    number: int
    runs: dict[int, TrialRun] = field(default_factory=dict)

    @property
    def is_pruned(self) -> bool:
        return any(run.status == PRUNED for run in self.runs.values())

    def set_values(self, point: Point) -> dict[str, Node]:
        """Return the values of a run of the trial."""
        return next(iter(self.runs.values())).set_values(point)

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
    project: Project, sweep: str, metrics: Sequence[SearchMetric]
) -> dict[int, SearchTrial]:
    """Return the trials of a sweep by number, from its records."""
    asked = Asked(where=f'sweep = "{sweep}"', sort=("created",), archived=True)
    trials: dict[int, SearchTrial] = {}
    for row in open_catalog(project).select(asked).rows():
        run = read_trial(RunView(row.path), metrics) if row is not None else None
        if run is not None:
            trial = trials.setdefault(run.number, SearchTrial(run.number))
            trial.runs[run.seed] = run  # the oldest first: the newest stays
    return trials


def read_trial(view: RunView, metrics: Sequence[SearchMetric]) -> TrialRun | None:
    """Return a run as part of its trial; None for a damaged record."""
    try:
        first = view.file.attempts[0]
        point = str(first.launch["point"])
        scores, step = scores_of(view, [(each.name, each.mode, each.pick) for each in metrics])
        return TrialRun(
            view=view,
            number=int(point.partition("/")[0]) - 1,
            seed=int(first.seeds.get("seed", 0)),
            status=PRUNED if PRUNED in view.labels else view.status,
            scores=scores,
            score_step=step,
            cause=view.file.newest.reason,
            step=view.last_step,
        )
    except (AssayError, LookupError, ValueError):
        return None


def sweep_runs(trials: Mapping[int, SearchTrial], points: Mapping[int, Point]) -> list[SweepRun]:
    """Return the runs for the table of a sweep, with what their records say."""
    return [
        SweepRun(
            id=run.view.id,
            status=run.status,
            point=str(number + 1),
            values=run.shown_values(points[number]),
            score=run.scores[0],
            step=run.score_step,
            cause="" if run.status in ("finished", PRUNED) else run.cause,
            seed=run.seed,
        )
        for number, trial in sorted(trials.items())
        for _, run in sorted(trial.runs.items())
    ]
