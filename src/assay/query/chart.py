"""Curves as text: a chart of dots for one metric, a line of blocks for each of many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from assay.core.formatting import number

if TYPE_CHECKING:
    from assay.store.series import Series

_BLOCKS = "▁▂▃▄▅▆▇█"
_BRAILLE = 0x2800
# Dots of one character, two columns of four, from the bottom.
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as blocks of eight heights, at most `width` of them; what is no number is a space.

    >>> sparkline([1, 2, 3, 2, 1], 5), sparkline([5.0], 3), sparkline([], 3)
    ('▁▅█▅▁', '▁', '')
    """
    shown = _thinned(values, width)
    known = [value for value in shown if math.isfinite(value)]
    if not known:
        return " " * len(shown)
    low = min(known)
    high = max(known)
    heights = [
        round(_share(v, low, high) * 7) if math.isfinite(v) and high > low else 0 for v in shown
    ]
    return "".join(
        _BLOCKS[h] if math.isfinite(v) else " " for h, v in zip(heights, shown, strict=True)
    )


def chart(series: Series, *, width: int, height: int) -> list[str]:
    """Return one curve as lines of text, at most `width` columns and `height` + 1 lines."""
    steps, values = _points(series, width)
    pairs = zip(steps, values, strict=True)
    points = [(int(step), float(value)) for step, value in pairs if math.isfinite(value)]
    if not points:
        return ["no numbers yet"]
    low = min(v for _, v in points)
    high = max(v for _, v in points)
    labels = [number(high), number(_middle(low, high)), number(low)]
    room = max(map(len, labels))
    columns = max(8, width - room - 2)
    first, _ = points[0]
    last, _ = points[-1]
    cells = [[0] * columns for _ in range(height)]
    before: tuple[int, int] | None = None
    for step, value in points:
        x = round((step - first) / max(last - first, 1) * (2 * columns - 1))
        y = round(_share(value, low, high) * (4 * height - 1)) if high > low else 2 * height
        for each_x, each_y in _between(before or (x, y), (x, y)):
            line = cells[height - 1 - each_y // 4]
            line[each_x // 2] |= _DOTS[each_x % 2][each_y % 4]
        before = (x, y)
    at = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
    lines = []
    for i, line in enumerate(cells):
        drawn = "".join(chr(_BRAILLE + dots) if dots else " " for dots in line)
        lines.append(f"{at.get(i, ''):>{room}} │{drawn}".rstrip())
    begin = f"step {first}"
    rest = max(1, columns - len(begin))
    return [*lines, f"{'':>{room}} └{begin}{last:>{rest}}"]


def middles(series: Series, width: int) -> list[float]:
    """Return the values of a curve, or the middle of the extremes of each of `width` ranges."""
    if len(series) <= 20 * width:
        return [float(value) for value in series.values]
    found = series.reduced(width)
    return [
        _middle(float(low), float(high)) for low, high in zip(found.lows, found.highs, strict=True)
    ]


def _points(series: Series, width: int) -> tuple[Sequence[int], Sequence[float]]:
    """The curve with at most four points a column, spikes included."""
    if len(series) <= 4 * width:
        return list(series.steps), list(series.values)
    found = series.reduced(2 * width)
    steps = [step for step in found.steps for _ in range(2)]
    return steps, [value for pair in zip(found.lows, found.highs, strict=True) for value in pair]


def _share(value: float, low: float, high: float) -> float:
    """Return the position of `value` between `low` and a greater `high`, from 0 to 1.

    The distance of the two may exceed the greatest float.
    """
    span = high - low
    if math.isinf(span):
        return (value / 2 - low / 2) / (high / 2 - low / 2)
    return (value - low) / span


def _middle(low: float, high: float) -> float:
    total = low + high
    return total / 2 if math.isfinite(total) else low / 2 + high / 2


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    count = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            start[0] + round((end[0] - start[0]) * i / count),
            start[1] + round((end[1] - start[1]) * i / count),
        )
        for i in range(count + 1)
    ]


def _thinned(values: Sequence[float], width: int) -> list[float]:
    """Means of neighbours, so that at most `width` are left."""
    total = len(values)
    if total <= width:
        return [float(value) for value in values]
    edges = [i * total // width for i in range(width + 1)]
    return [
        math.fsum(float(value) / (b - a) for value in values[a:b])
        if all(map(math.isfinite, values[a:b]))
        else math.nan
        for a, b in pairwise(edges)
    ]
