"""Curves as text in a terminal, and as SVG in a notebook."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.formatting import number
from assay.core.terminal import visible

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
    shown = _thin(values, width)
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


def _thin(values: Sequence[float], width: int) -> list[float]:
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


_COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf", "#7f7f7f")
_POINTS = 400
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 280, 64, 36


def html_line(
    title: str, facts: Sequence[str], files: Sequence[Path], *, curve: str, values: Sequence[float]
) -> str:
    """Return one line of HTML: a title, facts, a sparkline of the curve's values, and links."""
    words = [f"<b>{escape(visible(title))}</b>", *map(escape, facts)]
    links = [f'<a href="{escape(_link(path))}">{path.name}</a>' for path in files if path.exists()]
    return f"<div>{' · '.join(words)} {_spark(curve, values)} {' '.join(links)}</div>"


def _link(path: Path) -> str:
    """Return a path relative to the working directory, which a notebook serves."""
    return Path(os.path.relpath(path)).as_posix()


def _spark(name: str, values: Sequence[float]) -> str:
    points = _line(range(len(values)), values, (0.0, 0.0, 90.0, 18.0))
    if not points:
        return ""
    title = f"<title>{escape(visible(name))}</title>"
    return (
        '<svg width="90" height="18" style="vertical-align:middle">'
        f'{title}<polyline points="{points}" fill="none" stroke="{_COLORS[0]}"/></svg>'
    )


class CurveDrawing:
    """Curves of a run as SVG, which a notebook shows; `save` writes them into a file."""

    def __init__(self, title: str, curves: Mapping[str, Series]) -> None:
        """Draw curves, of which there is at least one, by the names of their metrics."""
        self.title = title
        self.names = list(curves)
        self.svg = _drawing(curves)

    def __repr__(self) -> str:
        return f"<CurveDrawing {self.title}: {', '.join(self.names)}>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the SVG and return its path."""
        file = Path(path)
        file.write_text(self.svg, encoding="utf-8")
        return file


def _drawing(curves: Mapping[str, Series]) -> str:
    xs = [float(x) for curve in curves.values() for x in curve.xs]
    ys = [float(y) for curve in curves.values() for y in curve.values if math.isfinite(y)]
    box = (float(_LEFT), 10.0, _WIDTH - 10.0, float(_HEIGHT - _BOTTOM))
    limits = (
        min(xs, default=0.0),
        max(xs, default=1.0),
        min(ys, default=0.0),
        max(ys, default=1.0),
    )
    first = next(iter(curves.values()))
    parts = [_axes(box, limits, first.axis or "step")]
    for i, (name, curve) in enumerate(curves.items()):
        color = _COLORS[i % len(_COLORS)]
        every = max(1, len(curve) // _POINTS)
        points = _line(curve.xs[::every], curve.values[::every], box, limits)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        )
        y = 24 + 16 * i
        parts.append(f'<text x="{_WIDTH - 16}" y="{y}" text-anchor="end" fill="{color}">')
        parts.append(f"{escape(visible(name))}</text>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
        f' font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
    )


def _axes(
    box: tuple[float, float, float, float], limits: tuple[float, float, float, float], axis: str
) -> str:
    left, top, right, bottom = box
    low_x, high_x, low_y, high_y = map(number, limits)
    frame = f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#888"/>'
    labels = (
        (left, bottom + 14, "start", low_x),
        (right, bottom + 14, "end", high_x),
        ((left + right) / 2, bottom + 28, "middle", escape(visible(axis))),
        (left - 4, bottom, "end", low_y),
        (left - 4, top + 10, "end", high_y),
    )
    return frame + "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#555">{text}</text>'
        for x, y, anchor, text in labels
    )


def _line(
    xs: Iterable[float],
    ys: Iterable[float],
    box: tuple[float, float, float, float],
    limits: tuple[float, float, float, float] | None = None,
) -> str:
    """Return the points of a polyline in a box; nothing of fewer than two finite values."""
    pairs = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    if len(pairs) < 2:
        return ""
    if limits is None:
        finite = [y for _, y in pairs]
        limits = (pairs[0][0], pairs[-1][0], min(finite), max(finite))
    left, top, right, bottom = box
    low_x, high_x, low_y, high_y = limits
    wide = (high_x - low_x) or 1.0
    high = (high_y - low_y) or 1.0
    return " ".join(
        f"{left + (x - low_x) / wide * (right - left):.1f},"
        f"{bottom - (y - low_y) / high * (bottom - top):.1f}"
        for x, y in pairs
    )
