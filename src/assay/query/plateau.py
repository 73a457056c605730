"""Plateau of a run: its metric has not improved for half of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.core.errors import RecordError
from assay.core.formatting import number
from assay.core.run_file import Summary
from assay.store.layout import RunFolder
from assay.store.series import read_series

LEAST_VALUES = 20
"""Values that a metric must have before anything is said about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Moment (Unix ns) since which a run no longer learns, and one line for people."""

    at_ns: int
    text: str


def plateau_of(
    folder: RunFolder, best: tuple[str, str], summaries: Mapping[str, Summary]
) -> Plateau | None:
    """Return the plateau of a run; None while it learns, or where nobody can tell.

    `best` are metric and mode of `[checkpoint] best`, or empty: then `valid/loss` counts, else
    `train/loss`. A run no longer learns when its best value lies in the first half of its steps,
    of at least `LEAST_VALUES` values.
    """
    losses = [(name, "min") for name in ("valid/loss", "train/loss")]
    name, mode = next((each for each in (best, *losses) if each[0] in summaries), ("", ""))
    summary = summaries.get(name)
    if summary is None or summary.count < LEAST_VALUES:
        return None
    at_best, value = summary.at_min, summary.min
    if mode == "max":
        at_best, value = summary.at_max, summary.max
    if summary.step <= 2 * at_best:
        return None
    at_ns = _since_ns(folder, name, at_best)
    text = f"{name} has not improved on {number(value)} since step {at_best:,}"
    return Plateau(at_ns=at_ns, text=text) if at_ns else None


def _since_ns(folder: RunFolder, name: str, at_best: int) -> int:
    """Return the time of the value that made it a plateau, the same at each call; 0 for none."""
    try:
        series = read_series(folder.metrics, names=[name])[name]
    except (OSError, KeyError, RecordError):
        return 0
    steps = series.steps[LEAST_VALUES - 1 :]
    times = series.times_ns[LEAST_VALUES - 1 :]
    late = times[steps > 2 * at_best]
    return int(late[0]) if len(late) else 0
