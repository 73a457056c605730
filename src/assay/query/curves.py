"""Curves of many runs, reduced to what a screen can show without losing a spike."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.formats.json_codec import dumps
from assay.formats.metrics_file import metrics_state
from assay.store.layout import RunFolder
from assay.store.metrics_tail import Tail
from assay.store.series import read_series

if TYPE_CHECKING:
    from assay.store.series import Series

_KEPT_BYTES = 48 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveView:
    """Part of a curve that is looked at.

    `x` is "" for the axis that the run gave the metric, "step", "time" (unix seconds), "elapsed"
    (seconds since the first point of the run), "epoch", or a metric. `low` and `high` bound the x
    axis, None is open. At least `points` ranges of x are told apart, at most a quarter more; with
    `log` they are equally wide on a logarithmic axis. `smooth` is the weight of what came before in
    an exponential moving average of all points, 0 for none. `means`: the mean of each range is
    wanted.
    """

    x: str = ""
    low: float | None = None
    high: float | None = None
    points: int = 600
    log: bool = False
    branches: bool = False
    smooth: float = 0.0
    means: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve as it is drawn.

    Of a reduced curve each item stands for a range of x that holds points: its first x and the
    value there, the smallest and the largest value; the last x is in `last_x`. Of one that `is_raw`
    each is a point, and `values`, `lows` and `highs` are the same array. Values that are not finite
    are left out and counted. `means` has the mean of each range, `smooths` the moving average at
    each x. `is_ordered`: x never goes back, as it may over another metric.

    `means` are there where the view asks for them and for a branch that was left behind, which is
    drawn by them; never for a curve that `is_raw`.

    `last`, `least` and `most` are values of the whole curve of `points` points, whatever the view.
    """

    run: str
    metric: str
    branch: int
    xs: NDArray[np.float64]
    values: NDArray[np.float64]
    lows: NDArray[np.float64]
    highs: NDArray[np.float64]
    means: NDArray[np.float64] | None
    smooths: NDArray[np.float64] | None
    is_raw: bool
    is_ordered: bool
    total: int
    points: int
    last: float
    least: float
    most: float
    first_x: float
    last_x: float
    width: float
    non_finite: int = 0
    non_finite_x: float = math.nan

    def __len__(self) -> int:
        return len(self.xs)


@dataclass(slots=True)
class _CachedCurves:
    """The curves of one file as it was at `stamp`."""

    stamp: tuple[int, int]
    series: dict[str, Series]
    size_bytes: int


class CurveReader:
    """Reader of curves that follows open runs and caches large files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[Path, Tail] = {}
        self._kept: OrderedDict[tuple[Path, bool], _CachedCurves] = OrderedDict()

    def tail(self, folder: RunFolder) -> Tail:
        """Return the follower of a run that is open."""
        with self._lock:
            return self._tails.setdefault(folder.path, Tail(folder.metrics))

    def forget(self, folder: RunFolder) -> None:
        """Stop following a run: it has ended, or is gone."""
        with self._lock:
            self._tails.pop(folder.path, None)

    def revision(self, folder: RunFolder, *, update: bool = False) -> int:
        """Return a number that grows with the curves of an open run."""
        tail = self.tail(folder)
        if update:
            tail.update()
        return tail.rows

    def summaries_json(self, folder: RunFolder) -> str:
        """Return the summaries of an open run as the index keeps them."""
        tail = self.tail(folder)
        tail.update()
        return dumps(tail.summaries())

    def series(
        self,
        folder: RunFolder,
        names: Iterable[str] | None,
        *,
        is_open: bool,
        branches: bool = False,
    ) -> Mapping[str, Series]:
        """Return the curves of a run; RecordError when its file is of a newer format."""
        if is_open:
            tail = self.tail(folder)
            tail.update()
            return tail.series(names, branches=branches)
        key = (folder.path, branches)
        stamp = metrics_state(folder.metrics)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.stamp == stamp:
                self._kept.move_to_end(key)
                return kept.series
        found = read_series(folder.metrics, branches=branches)
        size = sum(32 * len(each) for each in found.values())
        # Small ones are read again as quickly as they are found in the cache.
        if 1 << 20 < size < _KEPT_BYTES:
            with self._lock:
                self._kept[key] = _CachedCurves(stamp, found, size)
                while sum(each.size_bytes for each in self._kept.values()) > _KEPT_BYTES:
                    self._kept.popitem(last=False)
        return found


def draw_curves(
    runs: Iterable[str],
    read: Callable[[str], Mapping[str, Series]],
    metrics: Sequence[str],
    view: CurveView,
    *,
    widths: Mapping[str, float],
) -> list[Curve]:
    """Return the curves in a view of each run: of each metric and branch that has points.

    `read` returns the series of a run. One run is read, drawn and let go after the other: together
    they may take gigabytes. All curves of a metric are divided into the same ranges. Their width is
    that of `widths`, else it fits the view.
    """
    extents = {metric: _Extent(view.low, view.high) for metric in metrics}

    def draw_run(run: str) -> list[Curve]:
        parts = list(_divide_run(run, read(run), metrics, view))
        for part in parts:
            extents[part.metric].add(part.places)
        drawn = [_draw_part(part, *bounds(part.metric), view) for part in parts]
        return [curve for curve in drawn if curve is not None]

    def bounds(metric: str) -> tuple[float, float, float]:
        low, high = extents[metric].bounds()
        return low, high, widths.get(metric) or width_for(low, high, view.points)

    curves = {run: draw_run(run) for run in runs}
    for run, drawn in curves.items():
        # A longer run further on has made the ranges wider.
        if any(curve.width != bounds(curve.metric)[-1] for curve in drawn if not curve.is_raw):
            curves[run] = draw_run(run)
    return list(chain.from_iterable(curves.values()))


def width_for(low: float, high: float, points: int) -> float:
    """Return the range width that divides an x axis into `points` to 1.25 times as many ranges.

    It has three binary digits, so that its multiples are exact.

    >>> [width_for(*each, 600) for each in ((0, 600), (0, 1199), (0, 1200), (5, 5))]
    [1.0, 1.75, 2.0, 0.0]
    """
    if not high > low or not math.isfinite(high - low):
        return 0.0
    widest = (high - low) / points
    quarter = 2.0 ** (math.floor(math.log2(widest)) - 2)
    return quarter * math.floor(widest / quarter)


class _Places:
    """Places of a branch's points on the x axis, shared by all metrics of the same rows."""

    def __init__(self, xs: NDArray[np.float64]) -> None:
        self.xs = xs
        self.is_ordered = not bool((xs[1:] < xs[:-1]).any())
        if len(xs):
            ends = (xs[0], xs[-1]) if self.is_ordered else (xs.min(), xs.max())
            self.low, self.high = map(float, ends)
        self._ranges: dict[tuple[float, float, float], _Ranges] = {}

    def ranges(self, low: float, high: float, width: float, view: CurveView) -> _Ranges:
        """Return the ranges that the points between two values of x are drawn in."""
        key = (low, high, width)
        if key not in self._ranges:
            self._ranges[key] = self._divide(low, high, width, view)
        return self._ranges[key]

    def _divide(self, low: float, high: float, width: float, view: CurveView) -> _Ranges:
        xs, within = self.xs, slice(0, len(self.xs))
        if self.is_ordered and (low > self.low or high < self.high):
            within = _within(xs, low, high)
            xs = xs[within]
        total = len(xs)
        if total <= 2 * view.points or (self.is_ordered and not width):
            return _Ranges(within, xs.copy(), None)  # a view would keep all of a long curve
        if self.is_ordered:
            starts = _range_starts(xs, width, view)
        else:
            seen = max(1, int(np.count_nonzero((xs >= low) & (xs <= high))))
            count = min(total, _MOST_OF_DISORDER, math.ceil(view.points * total / seen))
            starts = np.linspace(0, total, count, endpoint=False).astype(np.int64)
        return _Ranges(within, xs[starts], starts)


class _Extent:
    """Part of the x axis that curves are drawn in, which grows with them where the view is open."""

    def __init__(self, low: float | None, high: float | None) -> None:
        self._view = (low, high)
        self._low, self._high = math.inf, -math.inf

    def add(self, places: _Places) -> None:
        self._low, self._high = min(self._low, places.low), max(self._high, places.high)

    def bounds(self) -> tuple[float, float]:
        low, high = self._view
        return self._low if low is None else low, self._high if high is None else high


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Ranges of x that hold points, each as its first x, and where it starts among those `within`.

    `starts` is None where each point is drawn.
    """

    within: slice
    xs: NDArray[np.float64]
    starts: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class _Part:
    """One branch of a curve, with all its points."""

    run: str
    metric: str
    branch: int
    places: _Places
    values: NDArray[np.float64]


_Branch = tuple[int, _Places, NDArray[np.bool_] | None]


def _divide_run(
    run: str, series: Mapping[str, Series], metrics: Iterable[str], view: CurveView
) -> Iterator[_Part]:
    """Yield the branches of a run's curves, each set of rows placed once."""
    branches: dict[tuple[int, ...], list[_Branch]] = {}
    for metric in metrics:
        one = series.get(metric)
        if one is None:
            continue
        rows = (one.steps, one.times_ns, one.branches, one.axis_values)
        key = tuple(map(id, rows))
        if key not in branches:
            branches[key] = list(_divide_series(series, one, view))
        for branch, places, kept in branches[key]:
            if len(places.xs):
                values = one.values if kept is None else one.values[kept]
                yield _Part(run, metric, branch, places, values)


def _divide_series(series: Mapping[str, Series], one: Series, view: CurveView) -> Iterator[_Branch]:
    """Yield number and places of each branch, and which of the points it holds; None: all.

    Points off the x axis are in none.
    """
    xs = _xs(series, one, view)
    known = np.isfinite(xs)
    if view.log:
        known &= xs > 0
    if not view.branches or not one.branches.any():
        is_whole = bool(known.all())
        yield (0, _Places(xs), None) if is_whole else (0, _Places(xs[known]), known)
        return
    for branch in np.unique(one.branches).tolist():
        here = (one.branches == branch) & known
        yield int(branch), _Places(xs[here]), here


def _xs(series: Mapping[str, Series], one: Series, view: CurveView) -> NDArray[np.float64]:
    """Return where each point lies on the x axis; nan where it has no place there."""
    match view.x:
        case "":
            return one.xs
        case "step":
            return one.steps.astype(np.float64)
        case "time":
            return one.times_ns / 1e9
        case "elapsed":
            first_ns = min(int(each.times_ns[0]) for each in series.values() if len(each))
            return (one.times_ns - first_ns) / 1e9
    other = series.get(view.x)
    if other is None or not len(other):
        return np.full(len(one), np.nan)
    # The newest value of the other metric at or before the step; before its first one there is
    # none.
    order = np.argsort(other.steps, kind="stable")
    at = np.searchsorted(other.steps[order], one.steps, side="right") - 1
    return np.where(at >= 0, other.values[order][np.maximum(at, 0)], np.nan)


_MOST_OF_DISORDER = 20_000
"""Ranges at most of a curve whose x goes back and forth, of which no part can be left out."""


def _draw_part(part: _Part, low: float, high: float, width: float, view: CurveView) -> Curve | None:
    """Return the curve of a part between two values of x, with the points next to them.

    None where it has no point.
    """
    places = part.places
    ranges = places.ranges(low, high, width, view)
    xs, starts = ranges.xs, ranges.starts
    values = part.values[ranges.within]
    total = len(values)
    if not total:
        return None
    finite = np.isfinite(values)
    non_finite = total - int(np.count_nonzero(finite))
    numbers = np.where(finite, values, np.nan) if non_finite else values
    smooths = None
    if view.smooth:
        smooths = smooth_values(part.values, view.smooth)[ranges.within].copy()
    means = None
    if starts is None:
        firsts = lows = highs = numbers.copy()
    else:
        firsts, smooths = numbers[starts], None if smooths is None else smooths[starts]
        lows, highs = np.fmin.reduceat(numbers, starts), np.fmax.reduceat(numbers, starts)
        if view.means or part.branch:
            means = _means(values, finite, starts)
    is_whole = total == len(part.values) and not non_finite
    least, most = (lows, highs) if is_whole else (part.values, part.values)
    return Curve(
        run=part.run,
        metric=part.metric,
        branch=part.branch,
        xs=xs,
        values=firsts,
        lows=lows,
        highs=highs,
        means=means,
        smooths=smooths,
        is_raw=starts is None,
        is_ordered=places.is_ordered,
        total=total,
        points=len(part.values),
        last=float(part.values[-1]),
        least=float(np.fmin.reduce(least)),
        most=float(np.fmax.reduce(most)),
        first_x=places.low,
        last_x=places.high,
        width=width,
        non_finite=non_finite,
        non_finite_x=float(places.xs[ranges.within][finite.argmin()]) if non_finite else math.nan,
    )


def _means(
    values: NDArray[np.float64], finite: NDArray[np.bool_], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean of the finite values in each range, nan where there are none."""
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(invalid="ignore", over="ignore"):
        sums: NDArray[np.float64] = np.add.reduceat(np.where(finite, values, 0.0), starts)
        return sums / counts


def smooth_values(values: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
    """Return the exponential moving average at each value, without a bias to zero at the begin.

    `weight` is that of what came before, above 0 and below 1. A value that is not finite changes
    nothing; before the first finite one the average is nan.

    >>> smooth_values(np.array([4.0, np.nan, 0.0]), 0.5).tolist()
    [4.0, 4.0, 1.3333333333333333]
    """
    finite = np.isfinite(values)
    numbers = values[finite]
    # Within a block the average is a sum that is scaled by powers of the weight; they must not
    # overflow.
    length = max(1, min(len(numbers), int(_MOST_POWER / -math.log(weight))))
    padded = np.zeros(-(-len(numbers) // length) * length)
    padded[: len(numbers)] = numbers
    powers = weight ** np.arange(length)
    sums = np.cumsum(padded.reshape(-1, length) / powers, axis=1) * powers
    before = 0.0
    for block in sums:
        block += weight * powers * before
        before = block[-1]
    seen = np.cumsum(np.ones(len(numbers)))
    averages = sums.ravel()[: len(numbers)] * (1 - weight) / -np.expm1(seen * math.log(weight))
    at = np.cumsum(finite) - 1
    return (
        np.where(at >= 0, averages[np.maximum(at, 0)], np.nan) if len(numbers) else values * np.nan
    )


_MOST_POWER = 100.0
"""Largest exponent of e that a power of a weight may reach."""


def _within(xs: NDArray[np.float64], low: float, high: float) -> slice:
    """Return the points with x between two limits, and the one before and behind; x ascends."""
    begin = max(0, int(np.searchsorted(xs, low, side="left")) - 1)
    end = int(np.searchsorted(xs, high, side="right")) + 1
    return slice(begin, end)


def _range_starts(xs: NDArray[np.float64], width: float, view: CurveView) -> NDArray[np.int64]:
    """Return the index of the first point of each range of x that is drawn as one; x ascends."""
    if view.log:
        return _starts(xs, np.geomspace(xs[0], xs[-1], view.points))
    first = math.floor(xs[0] / width)
    last = math.floor(xs[-1] / width)
    return _starts(xs, np.arange(first, last + 1) * width)


def _starts(xs: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the first point in each non-empty range; ranges begin at `edges`."""
    found = np.searchsorted(xs, edges, side="left")
    starts = np.concatenate([np.zeros(1, np.int64), found[found < len(xs)]])
    is_first = np.ones(len(starts), np.bool_)
    is_first[1:] = starts[1:] != starts[:-1]  # np.unique would take as long as all the rest
    return starts[is_first]
