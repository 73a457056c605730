"""Curves in a few numbers, in little memory whatever their length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.formats.run_file import Summary
from assay.store.metrics_reader import ChangedError, read_windows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_UNIT_BITS = 1074 + 53
"""The mantissa of every float, the smallest included, is a whole number of 2 to the minus this."""


def summaries(folder: Path) -> dict[str, Summary]:
    """Return the summary of each metric over the current branch; NaN is left out.

    Metrics of any length take little memory.
    """
    while True:
        fold = Fold()
        try:
            for (keys, rows), branches in read_windows(folder):
                curve = rows if not branches.any() else rows[branches == 0]
                fold.add(keys.names, curve["step"], curve["values"], curve["place"])
        except ChangedError:
            continue
        return fold.summaries()


def mean(values: Sequence[float]) -> float:
    """Return the mean of numbers without NaN; that of equal ones is each of them.

    The sum is exact, so that cancellation loses nothing.
    """
    try:
        near = math.fsum(values) / len(values) if values else math.nan
    except ValueError:  # infinities of both signs
        near = math.nan
    except OverflowError:  # their sum is no float, though their mean is one
        near = 2 * math.fsum(value / (2 * len(values)) for value in values)
    return clamp(near, min(values), max(values)) if near == near else near


def clamp(mean: float, low: float, high: float) -> float:
    """Return a mean between the smallest and the largest value, which rounding may leave."""
    return min(max(mean, low), high)


class Fold:
    """Summaries of curves whose rows come a part at a time, each part of one key set."""

    def __init__(self) -> None:
        self._curves: dict[str, _FoldedCurve] = {}

    def add(
        self,
        names: Sequence[str],
        steps: NDArray[np.int64],
        values: NDArray[np.float64],
        places: NDArray[Any],
    ) -> None:
        """Add rows on the curve: a column of values for each name, and the places of the rows."""
        if not len(steps):
            return
        last = int(places.argmax())
        for i, name in enumerate(names):
            self._curves.setdefault(name, _FoldedCurve()).add(
                values[:, i], steps, last, int(places[last])
            )

    def summaries(self) -> dict[str, Summary]:
        """Return the summary of each curve as it is by now."""
        return {name: curve.summary() for name, curve in self._curves.items()}


@dataclass(slots=True)
class _FoldedCurve:
    """One curve so far. `total` is the exact sum of what is finite, in units of `_UNIT_BITS`."""

    last: float = math.nan
    step: int = 0
    place: int = -1
    count: int = 0
    known: int = 0
    extremes: dict[int, tuple[float, int]] = field(default_factory=dict)
    infinite: float = 0.0
    total: int = 0

    def add(
        self, values: NDArray[np.float64], steps: NDArray[np.int64], last: int, place: int
    ) -> None:
        """Add points; the one at index `last` is the last of them, and has this place."""
        import numpy as np

        self.count += len(values)
        if place >= self.place:
            self.last, self.step, self.place = float(values[last]), int(steps[last]), place
        is_known = values == values
        if not is_known.all():
            values, steps = values[is_known], steps[is_known]
        if not len(values):
            return
        self.known += len(values)
        for sign, best in (1, values.min()), (-1, values.max()):
            found = sign * float(best), int(steps[values == best].min())
            self.extremes[sign] = min(self.extremes.get(sign, found), found)
        is_finite = np.isfinite(values)
        if not is_finite.all():
            self.infinite += sum(values[~is_finite].tolist())
            values = values[is_finite]
        self.total += _exact_sum(values)

    def summary(self) -> Summary:
        nowhere = math.nan, 0
        low, at_low = self.extremes.get(1, nowhere)
        high, at_high = self.extremes.get(-1, nowhere)
        return Summary(
            last=self.last,
            step=self.step,
            count=self.count,
            min=low,
            at_min=at_low,
            max=-high,
            at_max=at_high,
            mean=self._mean(),
        )

    def _mean(self) -> float:
        """Return what `mean` does."""
        if not self.known or self.infinite:  # infinities of both signs add up to nan
            return self.infinite if self.known else math.nan
        try:
            near = self.total / (1 << _UNIT_BITS) / self.known
        except OverflowError:  # the sum is no float, though the mean is one
            near = self.total / (self.known << _UNIT_BITS)
        return clamp(near, self.extremes[1][0], -self.extremes[-1][0])


def _exact_sum(values: NDArray[np.float64]) -> int:
    """Return the sum of finite numbers in units of `_UNIT_BITS`; at most 2^26 numbers."""
    import numpy as np

    if not len(values):
        return 0
    fractions, exponents = np.frexp(values)
    lowest = int(exponents.min())
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    # Two halves, so that sums of each are whole numbers that a float holds.
    halves = (mantissas >> 27, 27), (mantissas & ((1 << 27) - 1), 0)
    total = 0
    for half, bits in halves:
        sums = np.bincount(exponents - lowest, weights=half)
        for place in np.flatnonzero(sums).tolist():
            total += int(sums[place]) << (place + bits)
    return total << (lowest - 53 + _UNIT_BITS)
