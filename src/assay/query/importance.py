"""Influence of config keys on a metric, each alone: rank correlation and eta squared, with n."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.query.observations import is_finite
from assay.store.cells import to_cell

_MOST_BINS = 10
_LEAST_IN_GROUP = 3


@dataclass(frozen=True, slots=True)
class Importance:
    """Influence of one key on a metric, over the `n` runs that have both.

    `correlation` is Spearman's, from -1 to 1; None for a key that is no number. `eta_squared` is
    the share of the variance of the metric that lies between the values of the key, less what
    groups by chance would have (adjusted as R2 is, 0 at least); numbers of many values are divided
    into at most ten groups of one size. It is None where groups have fewer than three runs each on
    average: a text that is another in each run explains nothing.
    """

    key: str
    correlation: float | None
    eta_squared: float | None
    n: int
    values: int


@dataclass(frozen=True, slots=True)
class Importances:
    """Importance of the keys that vary, over `runs` runs with the metric.

    `left_out` are keys that most of these runs lack.
    """

    keys: tuple[Importance, ...]
    runs: int
    left_out: tuple[str, ...] = ()


def importances(columns: Mapping[str, Sequence[Any]], metric: Sequence[Any]) -> Importances:
    """Return the importance of each column for a metric, the most important first.

    None in a column is a run without the key. Runs without a finite metric are left out. Columns
    are asked for one by one: together they may be millions of values.
    """
    known = [place for place, value in enumerate(metric) if is_finite(value)]
    target = np.array([float(metric[place]) for place in known], dtype=np.float64)
    found, left_out = [], []
    for key in columns:
        values = columns[key]
        having = [i for i, place in enumerate(known) if values[place] is not None]
        cells = [values[known[i]] for i in having]
        if not having or all(cell == cells[0] for cell in cells):
            continue
        if 2 * len(having) < len(known):
            left_out.append(key)
        else:
            found.append(_judge(key, cells, target[having]))
    found.sort(key=lambda each: (-(each.eta_squared or 0), -abs(each.correlation or 0), each.key))
    return Importances(tuple(found), len(known), tuple(left_out))


def _judge(key: str, values: Sequence[Any], target: NDArray[np.float64]) -> Importance:
    correlation = None
    if all(map(is_finite, values)):
        numbers = np.array(values, dtype=np.float64)
        spread = spearman(numbers, target)
        correlation = spread if math.isfinite(spread) else None
        _, codes = np.unique(numbers, return_inverse=True)
        count = int(codes.max()) + 1
        bins = max(2, min(_MOST_BINS, len(numbers) // (2 * _LEAST_IN_GROUP)))
        if count > _MOST_BINS or _LEAST_IN_GROUP * count > len(numbers):
            codes = (_ranks(numbers) * bins // (len(numbers) + 1)).astype(np.int64)
    else:
        places: dict[Any, int] = {}
        codes = np.array([places.setdefault(to_cell(value), len(places)) for value in values])
        count = len(places)
    return Importance(key, correlation, _eta_squared(codes, target), len(values), count)


def _eta_squared(codes: NDArray[Any], target: NDArray[np.float64]) -> float | None:
    """Return the adjusted share of the variance between groups; None for groups too small."""
    _, groups = np.unique(codes, return_inverse=True)
    counts = np.bincount(groups)
    if len(target) < _LEAST_IN_GROUP * len(counts):
        return None
    scaled = target - target.mean()
    scaled /= float(np.abs(scaled).max()) or 1.0  # so that no square overflows
    whole = float((scaled**2).sum())
    if not whole:
        return 0.0
    means = np.bincount(groups, scaled) / counts
    within = float(((scaled - means[groups]) ** 2).sum())
    adjusted = 1.0 - within / (len(target) - len(counts)) * (len(target) - 1) / whole
    return max(0.0, adjusted)


def spearman(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return Spearman's rank correlation, ties averaged; nan if one side is constant.

    >>> import numpy as np
    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    """
    a = _ranks(left)
    b = _ranks(right)
    a = a - a.mean()
    b = b - b.mean()
    size = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return float(np.clip((a * b).sum() / size, -1.0, 1.0)) if size else math.nan


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts - 1) / 2.0)[inverse]
    return ranks
