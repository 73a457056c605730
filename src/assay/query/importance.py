"""Importance of config keys for a metric: rank correlations, and a small random forest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_RUNS = 1_000
MAX_KEYS = 100
TREES = 30
DEPTH = 6
LEAST_LEAF = 3


@dataclass(frozen=True, slots=True)
class Importance:
    """Influence of one key on a metric.

    `correlation` is Spearman's, from -1 to 1; None for a key that is no number. `forest` is the
    share of the variance of runs that a forest did not see, by which this key predicts them; over
    all keys 1 at most. None where there are too few runs.
    """

    key: str
    correlation: float | None
    forest: float | None
    values: int


@dataclass(frozen=True, slots=True)
class Importances:
    """Importance of all keys that vary, over `runs` runs; `explained` is the out-of-bag R2."""

    keys: tuple[Importance, ...]
    runs: int
    explained: float | None


def importances(
    columns: dict[str, Sequence[Any]], metric: Sequence[Any], *, seed: int = 0
) -> Importances:
    """Return the importance of each column for a metric, the most important first.

    Runs without the metric are left out.
    """
    target = np.array([_number(value) for value in metric], dtype=np.float64)
    known = np.flatnonzero(np.isfinite(target))
    rng = np.random.default_rng(seed)
    if len(known) > MAX_RUNS:
        known = np.sort(rng.choice(known, MAX_RUNS, replace=False))
    target = target[known]
    places = known.tolist()
    encoded = []
    for key, values in columns.items():
        column = _column(key, [values[i] for i in places], target)
        if column is not None:
            encoded.append(column)
    encoded.sort(key=lambda each: -abs(_none_for_nan(each.correlation) or 0.0))
    encoded = encoded[:MAX_KEYS]
    shares = np.full(len(encoded), math.nan)
    explained = math.nan
    has_enough = len(target) >= 4 * LEAST_LEAF
    if has_enough and encoded and float(np.var(target)) > 0:
        shares, explained = _forest(encoded, target, rng)
    found = []
    for column, share in zip(encoded, shares, strict=True):
        correlation = _none_for_nan(column.correlation) if column.is_numeric else None
        found.append(Importance(column.key, correlation, _none_for_nan(float(share)), column.count))
    found.sort(key=_order)
    return Importances(tuple(found), len(target), _none_for_nan(float(explained)))


@dataclass(frozen=True, slots=True)
class _Column:
    """Values of a key, of which `count` differ: numbers, else `codes`, one for each text."""

    key: str
    numbers: NDArray[np.float64] | None
    codes: NDArray[np.int64]
    count: int
    correlation: float

    @property
    def is_numeric(self) -> bool:
        return self.numbers is not None


def _column(key: str, values: Sequence[Any], target: NDArray[np.float64]) -> _Column | None:
    """Return a column; None for one with a single value."""
    texts = np.array([str(value) for value in values])
    names, codes = np.unique(texts, return_inverse=True)
    if len(names) < 2:
        return None
    numbers = None
    if all(value is None or isinstance(value, int | float) for value in values):
        numbers = _as_numbers(values)
    places = _place_texts(codes, target, np.arange(len(target))) if numbers is None else numbers
    return _Column(key, numbers, codes, len(names), spearman(places, target))


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


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _order(each: Importance) -> tuple[float, float, str]:
    """Return the key by which the most important column comes first."""
    return -(each.forest or 0.0), -abs(each.correlation or 0.0), each.key


def _none_for_nan(value: float) -> float | None:
    return value if value == value else None


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts - 1) / 2.0)[inverse]
    return ranks


def _as_numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return numbers, in which what is none lies below all others."""
    array = np.array([_number(value) for value in values], dtype=np.float64)
    lowest = float(np.nanmin(array)) if np.isfinite(array).any() else 0.0
    numbers: NDArray[np.float64] = np.nan_to_num(
        array, nan=lowest - 1.0, posinf=1e300, neginf=-1e300
    )
    return numbers


def _place_texts(
    codes: NDArray[np.int64], target: NDArray[np.float64], known: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return texts as numbers: the mean target of the `known` runs with each text.

    A text that none of these has lies at the mean of all of them.
    """
    sums = np.bincount(codes[known], target[known], minlength=int(codes.max()) + 1)
    counts = np.bincount(codes[known], minlength=len(sums))
    means = np.where(counts > 0, sums / np.maximum(counts, 1), target[known].mean())
    placed: NDArray[np.float64] = means[codes]
    return placed


def _forest(
    encoded: Sequence[_Column], target: NDArray[np.float64], rng: np.random.Generator
) -> tuple[NDArray[np.float64], float]:
    """Return each column's share of the variance explained by a random forest.

    The second value is the forest's out-of-bag R2. Shares are of runs outside the bags, too: what a
    column of many values fits inside counts nothing.
    """
    count = len(target)
    columns = np.zeros((len(encoded), count))
    for place, each in enumerate(encoded):
        columns[place] = each.codes if each.numbers is None else each.numbers
    texts = [place for place, each in enumerate(encoded) if not each.is_numeric]
    gains = np.zeros(len(encoded))
    sums = np.zeros(count)
    votes = np.zeros(count)
    tried = max(1, math.ceil(len(columns) / 2))
    for _ in range(TREES):
        bag = rng.integers(0, count, count)
        outside = np.setdiff1d(np.arange(count), bag)
        for place in texts:  # by the bag alone: the runs outside must not know their own target
            columns[place] = _place_texts(encoded[place].codes, target, bag)
        _grow(columns, target, bag, outside, DEPTH, tried, rng, gains, sums)
        votes[outside] += 1
    is_known = votes > 0
    guesses = sums[is_known] / votes[is_known]
    left = float(((target[is_known] - guesses) ** 2).sum())
    whole = float(((target[is_known] - target[is_known].mean()) ** 2).sum())
    explained = max(0.0, 1.0 - left / whole) if whole else math.nan
    gains = np.maximum(gains, 0.0)
    total = gains.sum()
    return (gains / total * explained if total else gains), explained


def _grow(
    columns: NDArray[np.float64],
    target: NDArray[np.float64],
    inside: NDArray[np.int64],
    outside: NDArray[np.int64],
    depth: int,
    tried: int,
    rng: np.random.Generator,
    gains: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Split the runs of a node, or end it as a leaf.

    `sums` gathers a tree's predictions for the runs outside its bag, `gains` the fall of their
    squared error by the splits of each column.
    """
    values = target[inside]
    split = None
    if depth and len(inside) >= 2 * LEAST_LEAF:
        best = 1e-12 * len(inside)
        for column in rng.choice(len(columns), tried, replace=False):
            gain, cut = _best_cut(columns[column, inside], values)
            if gain > best:
                best = gain
                split = (int(column), cut)
    mean = values.mean()
    if split is None:
        sums[outside] += mean
        return
    column, cut = split
    for is_low in (True, False):
        inner = inside[(columns[column, inside] <= cut) == is_low]
        outer = outside[(columns[column, outside] <= cut) == is_low]
        errors = (target[outer] - mean) ** 2 - (target[outer] - target[inner].mean()) ** 2
        gains[column] += errors.sum()
        _grow(columns, target, inner, outer, depth - 1, tried, rng, gains, sums)


def _best_cut(column: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the largest fall of the squared error by a split of a node, and its threshold."""
    order = np.argsort(column, kind="stable")
    here = column[order]
    count = len(values)
    below = np.cumsum(values[order])[:-1]
    low = np.arange(1, count)
    total = below[-1] + values[order[-1]]
    gains = below**2 / low + (total - below) ** 2 / (count - low) - total**2 / count
    is_between = here[1:] > here[:-1]
    may_be = is_between & (low >= LEAST_LEAF) & (low <= count - LEAST_LEAF)
    if not may_be.any():
        return 0.0, 0.0
    at = int(np.argmax(np.where(may_be, gains, -np.inf)))
    return float(gains[at]), float(here[at])
