"""Curves in a few numbers: of short files without numpy, of long ones in little memory with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.regular_file import file_size
from assay.formats.run_file import Summary
from assay.store.series import Block, MetricsContents, Source, parts_by_name, read_contents

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LONG_BYTES = 1 << 21
"""A file of more bytes is not loaded."""
_UNIT_BITS = 1074 + 53
"""The mantissa of every float, the smallest included, is a whole number of 2 to the minus this."""


def summaries(source: Source) -> dict[str, Summary]:
    """Return the summary of each metric over the current branch; NaN is left out.

    A file of any length takes little memory.
    """
    if not isinstance(source, bytes | memoryview) and file_size(source) > _LONG_BYTES:
        return fold_file(Path(source))
    return summaries_of(read_contents(source))


def summaries_of(contents: MetricsContents) -> dict[str, Summary]:
    """Return the summaries of read rows."""
    parts = parts_by_name(block.on_curve() for block in contents.blocks)
    return {name: _summary(blocks) for name, blocks in parts.items()}


def _summary(parts: Sequence[tuple[Block, int]]) -> Summary:
    last = max(parts, key=lambda part: part[0].last_key)
    block, column = last
    known = [_known_numbers(block, column) for block, column in parts]
    values = [value for each, _ in known for value in each]
    low, at_low = _extreme(known, 1)
    high, at_high = _extreme(known, -1)
    return Summary(
        last=block.columns[column][-1],
        step=block.steps[-1],
        count=sum(len(block.steps) for block, _ in parts),
        min=low,
        at_min=at_low,
        max=high,
        at_max=at_high,
        mean=mean(values),
    )


def _known_numbers(block: Block, i: int) -> tuple[Sequence[float], Sequence[int]]:
    """Values that are no NaN, and their steps."""
    column = block.columns[i]
    if not math.isnan(sum(column)):
        return column, block.steps
    keep = [value == value for value in column]
    return list(compress(column, keep)), list(compress(block.steps, keep))


def _extreme(
    parts: Sequence[tuple[Sequence[float], Sequence[int]]], sign: int
) -> tuple[float, int]:
    """Return the smallest (sign 1) or largest (sign -1) value, and the lowest step that has it."""
    best = min if sign == 1 else max
    found = []
    for values, steps in parts:
        if values:
            value = best(values)
            step = steps[values.index(value)]
            if values.count(value) > 1:  # seldom, and many times as slow
                step = min(compress(steps, map(value.__eq__, values)))
            found.append((sign * value, step))
    if not found:
        return math.nan, parts[0][1][0] if parts[0][1] else 0
    value, step = min(found)
    return sign * value, step


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


def fold_file(path: Path) -> dict[str, Summary]:
    """Return the summaries of a file, which is read a window at a time."""
    from assay.store.chunk_stream import Outline, RewoundError, read_chunks, read_outline

    def fold(outline: Outline) -> dict[str, Summary]:
        fold = Fold()
        for chunk in read_chunks(path, outline):
            if not chunk.branch:
                fold.add(chunk.keys.names, chunk.steps, chunk.columns, chunk.last_key)
        return fold.summaries()

    try:
        return fold(Outline(is_placed=True))  # most files hold no rewind: one reading does
    except RewoundError:
        return fold(read_outline(path))


class Fold:
    """Summaries of curves whose rows come a part at a time, each part of one key set."""

    def __init__(self) -> None:
        self._curves: dict[str, _FoldedCurve] = {}

    def add(
        self,
        names: Sequence[str],
        steps: Sequence[int],
        columns: Sequence[Sequence[float]],
        last_key: tuple[bool, int, int],
    ) -> None:
        """Add rows on the curve; `last_key` orders the last ones of two parts, as in `Block`."""
        import numpy as np  # here: a list of runs must not pay for it

        numbers = np.asarray(steps)
        for name, column in zip(names, columns, strict=True):
            curve = self._curves.setdefault(name, _FoldedCurve())
            curve.add(np.asarray(column, np.float64), numbers, last_key)

    def summaries(self) -> dict[str, Summary]:
        """Return the summary of each curve as it is by now."""
        return {name: curve.summary() for name, curve in self._curves.items()}


@dataclass(slots=True)
class _FoldedCurve:
    """One curve so far. `total` is the exact sum of what is finite, in units of `_UNIT_BITS`."""

    last: float = math.nan
    step: int = 0
    last_key: tuple[bool, int, int] = (False, -(1 << 63), -1)
    count: int = 0
    known: int = 0
    extremes: dict[int, tuple[float, int]] = field(default_factory=dict)
    infinite: float = 0.0
    total: int = 0

    def add(
        self, values: NDArray[np.float64], steps: NDArray[np.int64], last_key: tuple[bool, int, int]
    ) -> None:
        import numpy as np

        self.count += len(values)
        if last_key >= self.last_key:
            self.last, self.step, self.last_key = float(values[-1]), int(steps[-1]), last_key
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
