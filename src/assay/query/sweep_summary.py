"""Summary of a sweep: one line a point, the best first, and the failures with their cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from assay.config.tree import KeyPath, Node, Table, dotted, fit_path, get_at, parse_dotted
from assay.core.formatting import number
from assay.core.terminal import elide, visible
from assay.core.text_table import align_rows
from assay.query.diff import write_value
from assay.query.groups import Spread, compute_spread
from assay.query.significance import confidence_interval

if TYPE_CHECKING:
    from assay.query.run import RunView

Mode = Literal["min", "max"]
Pick = Literal["best", "last"]

MAX_LINES = 30
_POINT_CELLS = 48
_LOSSES = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep.

    `values` are those of the varying keys, as text. Runs of one `point` are repeats; "": those with
    equal values. `score` is its value of the metric, measured at `step`; None without one. `cause`
    says why it did not finish.
    """

    id: str
    status: str
    values: Mapping[str, str]
    point: str = ""
    score: float | None = None
    step: int | None = None
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
        by_point: dict[object, list[SweepRun]] = {}
        for run in runs:
            by_point.setdefault(run.point or tuple(run.values.items()), []).append(run)
        points = [SweepPoint(_values_of(same), tuple(same)) for same in by_point.values()]
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
        repeats = ["95 % interval", "n"] if is_repeated else ["step"]
        rows = [["", *keys, self.metric, *repeats, "run"]]
        for place, point in enumerate(ranked[:limit], 1):
            values = [_shorten(point.values.get(key, "-")) for key in keys]
            best = _best_run(point, self.mode)
            cells = [str(place), *values, _mean(point)]
            step = "-" if best.step is None else str(best.step)
            cells += _repeats(point) if is_repeated else [step]
            rows.append([*cells, best.id or "-"])
        return rows


def scores_of(
    view: RunView, metrics: Sequence[tuple[str, Mode, Pick]]
) -> tuple[tuple[float | None, ...], int | None]:
    """Return the scores of a run by these metrics, and the step at which they were measured.

    Of one metric that is its best value, or its last one. Those of several are of one step: that of
    the checkpoint which the run holds for its best, else the last at which all were measured.
    """
    known = view.summaries
    if any(name not in known for name, _, _ in metrics):
        return (None,) * len(metrics), None
    if len(metrics) == 1:
        ((name, mode, pick),) = metrics
        of = known[name]
        if pick == "last":
            return (of.last,), of.step
        return ((of.max,), of.at_max) if mode == "max" else ((of.min,), of.at_min)
    curves = [view.metric(name) for name, _, _ in metrics]
    at = [dict(zip(each.steps.tolist(), each.values.tolist(), strict=True)) for each in curves]
    common = set.intersection(*map(set, at))
    if not common:
        return (None,) * len(metrics), None
    best = view.best
    step = best.step if best is not None and best.step in common else max(common)
    return tuple(values[step] for values in at), step


def values_at(config: Table, keys: Iterable[tuple[KeyPath, Node]]) -> dict[str, Node]:
    """Return the values that a config has at keys, by key.

    Each comes with the node that was set: of a key of another system, which the config has under
    another name, that is the value.
    """
    found = {dotted(parts): (get_at(config, fit_path(config, parts)), node) for parts, node in keys}
    return {key: node if there is None else there for key, (there, node) in found.items()}


def spell_assigned(config: Table, assigned: Iterable[tuple[str, Node]]) -> dict[str, str]:
    """Return the values that a config has at the keys which a point sets, as text by key."""
    found = {}
    for key, node in assigned:
        there = get_at(config, fit_path(config, parse_dotted(key)))
        found[key] = node if there is None else there
    return spell_values(found)


def spell_values(values: Mapping[str, Node]) -> dict[str, str]:
    """Return values as text, by key."""
    return {key: write_value(node) or "none" for key, node in values.items()}


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


def _values_of(runs: Sequence[SweepRun]) -> dict[str, str]:
    """Return the values of the runs of a point; a value may follow from the seed."""
    keys = dict.fromkeys(key for run in runs for key in run.values)
    return {key: ", ".join(dict.fromkeys(run.values.get(key, "-") for run in runs)) for key in keys}


def _shorten(text: str) -> str:
    """Return a value with no more digits than a person reads; a text has its quotes."""
    try:
        return number(float(text)) if "." in text or "e" in text else text
    except ValueError:
        return text


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
                "step": run.step,
                "cause": run.cause,
            }
            for run in point.runs
        ],
    }
