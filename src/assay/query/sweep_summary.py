"""Summary of a sweep: one line a point, the best first, and the failures with their cause."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.core.formatting import number
from assay.core.terminal import elide, visible
from assay.core.text_table import align_rows
from assay.formats.run_file import Summary
from assay.query.groups import Spread, compute_spread
from assay.query.significance import confidence_interval

Mode = Literal["min", "max"]

MAX_LINES = 30
_POINT_CELLS = 48
_LOSSES = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep.

    `values` are those of the varying keys, as text. `score` is its best value of the metric, None
    without one. `cause` says why it did not finish.
    """

    id: str
    status: str
    values: Mapping[str, str]
    score: float | None = None
    cause: str = ""
    seed: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.status in ("finished", "pruned")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Runs of one point, which differ in the seed alone."""

    values: Mapping[str, str]
    runs: tuple[SweepRun, ...]

    @property
    def spread(self) -> Spread | None:
        """Mean and deviation over the runs that finished with a number; None without one."""
        scores = self.scores
        return compute_spread(scores) if scores else None

    @property
    def scores(self) -> list[float]:
        """Scores of the finished runs, without nan."""
        scores = (run.score for run in self.runs if run.status == "finished")
        return [score for score in scores if score is not None and score == score]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSummary:
    """Points of a sweep, the best first; `mode` says whether small or large values are good."""

    sweep: str
    metric: str
    mode: Mode
    runs: tuple[SweepRun, ...]
    points: tuple[SweepPoint, ...] = field(default=())

    @classmethod
    def of(cls, sweep: str, runs: Sequence[SweepRun], metric: str, mode: Mode) -> SweepSummary:
        """Group the runs by point, and sort the points by their mean."""
        by_values: dict[tuple[tuple[str, str], ...], list[SweepRun]] = {}
        for run in runs:
            by_values.setdefault(tuple(run.values.items()), []).append(run)
        points = [SweepPoint(dict(values), tuple(same)) for values, same in by_values.items()]
        sign = -1.0 if mode == "max" else 1.0

        def order(point: SweepPoint) -> float:
            found = point.spread
            return sign * found.mean if found and math.isfinite(found.mean) else math.inf

        ranked = tuple(sorted(points, key=order))
        return cls(sweep=sweep, metric=metric, mode=mode, runs=tuple(runs), points=ranked)

    @property
    def unfinished(self) -> list[SweepRun]:
        """Runs that failed, were stopped or never began."""
        return [run for run in self.runs if not run.is_finished]

    def text(self, *, limit: int = MAX_LINES) -> list[str]:
        """Return the table, the failures and the counts as aligned lines."""
        best = f"{self.metric or 'no metric'}, {'largest' if self.mode == 'max' else 'smallest'}"
        head = [f"sweep {self.sweep}".rstrip(), f"{len(self.runs)} runs", f"{best} first"]
        lines = ["   ".join(head), *align_visible(self._table(limit))]
        if (more := len(self._ranked) - limit) > 0:
            lines.append(f"... and {more} more points")
        if self.unfinished:
            lines += ["", "did not finish:", *align_visible(_failures(self.unfinished))]
            lines += ["", f"{len(self.unfinished)} of {len(self.runs)} did not finish"]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return {
            "sweep": self.sweep,
            "metric": self.metric,
            "mode": self.mode,
            "points": [_plain(point) for point in self.points],
        }

    @property
    def _ranked(self) -> list[SweepPoint]:
        return [point for point in self.points if any(run.is_finished for run in point.runs)]

    def _table(self, limit: int) -> list[list[str]]:
        ranked = self._ranked
        if not ranked:
            return []
        keys = list(dict.fromkeys(key for point in self.points for key in point.values))
        is_repeated = any(len(point.runs) > 1 for point in ranked)
        repeats = ["95 % interval", "n"] if is_repeated else []
        rows = [["", *keys, self.metric, *repeats, "run"]]
        for place, point in enumerate(ranked[:limit], 1):
            values = [point.values.get(key, "-") for key in keys]
            cells = [str(place), *values, _mean(point)]
            if is_repeated:
                cells += _repeats(point)
            best = _best_run(point, self.mode)
            rows.append([*cells, best.id or "-"])
        return rows


def score_of(
    summaries: Mapping[str, Summary], values: Mapping[str, float], metric: str, mode: Mode
) -> float | None:
    """Return the best value that a run had of a metric; of a run without a record its last one."""
    if metric in summaries:
        return summaries[metric].max if mode == "max" else summaries[metric].min
    return values.get(metric)


def usual_metric(names: Sequence[str]) -> tuple[str, Mode]:
    """Return the metric that ranks runs whose config names none, and the better direction.

    >>> usual_metric(["train/loss", "valid/loss", "valid/acc"]), usual_metric([])
    (('valid/loss', 'min'), ('', 'min'))
    """
    losses = [name for name in names if name.rpartition("/")[2] in _LOSSES]
    evaluated = [name for name in losses if not name.startswith("train/")]
    found = next(iter([*evaluated, *losses, *names]), "")
    return found, usual_mode(found)


def usual_mode(metric: str) -> Mode:
    """Return "min" for losses and errors, "max" for everything else.

    >>> usual_mode("valid/loss"), usual_mode("valid/acc")
    ('min', 'max')
    """
    return "min" if not metric or metric.rpartition("/")[2] in _LOSSES else "max"


def _mean(point: SweepPoint) -> str:
    found = point.spread
    if found is None:
        return "pruned" if any(run.status == "pruned" for run in point.runs) else "-"
    return str(found) if found.count > 1 else number(found.mean)


def _repeats(point: SweepPoint) -> list[str]:
    """Return the confidence interval of the mean, and how many of the repeats are in it."""
    scores = point.scores
    interval = confidence_interval(scores)
    shown = f"{number(interval[0])} to {number(interval[1])}" if interval else "-"
    total = len(point.runs)
    return [shown, str(total) if len(scores) == total else f"{len(scores)} of {total}"]


def _best_run(point: SweepPoint, mode: Mode) -> SweepRun:
    """Return the best run of those whose scores count; where none does, the best pruned one."""
    known = [run for run in point.runs if run.score is not None and run.score == run.score]
    counted = [run for run in known if run.status == "finished"]
    scored = counted or [run for run in known if run.is_finished]
    if not scored:
        return point.runs[0]
    best = max if mode == "max" else min
    return best(scored, key=lambda run: run.score or 0.0)


def _failures(runs: Sequence[SweepRun]) -> list[list[str]]:
    return [
        [
            run.id or "-",
            run.status,
            elide("  ".join(f"{key}={value}" for key, value in _with_seed(run)), _POINT_CELLS),
            run.cause,
        ]
        for run in runs
    ]


def _with_seed(run: SweepRun) -> list[tuple[str, str]]:
    seed = [("seed", str(run.seed))] if run.seed is not None else []
    return [*run.values.items(), *seed]


def align_visible(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines in which control characters are spelled out."""
    return align_rows([[visible(cell) for cell in row] for row in rows])


def _plain(point: SweepPoint) -> dict[str, Any]:
    found = point.spread
    return {
        "values": dict(point.values),
        "mean": found.mean if found is not None else None,
        "std": found.std if found is not None else None,
        "n": found.count if found is not None else 0,
        "interval": confidence_interval(point.scores),
        "runs": [
            {
                "id": run.id,
                "seed": run.seed,
                "status": run.status,
                "score": run.score,
                "cause": run.cause,
            }
            for run in point.runs
        ],
    }
