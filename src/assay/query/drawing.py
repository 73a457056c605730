"""Curves as text in a terminal, and as SVG in a notebook."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.formatting import number
from assay.core.terminal import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
    found = series.reduce(width)
    return [
        _middle(float(low), float(high)) for low, high in zip(found.lows, found.highs, strict=True)
    ]


def _points(series: Series, width: int) -> tuple[Sequence[int], Sequence[float]]:
    """The curve with at most four points a column, spikes included."""
    if len(series) <= 4 * width:
        return list(series.steps), list(series.values)
    found = series.reduce(2 * width)
    steps = [step for step in found.steps for _ in range(2)]
    return steps, [value for pair in zip(found.lows, found.highs, strict=True) for value in pair]


def _share(value: float, low: float, high: float) -> float:
    """Return the position of `value` between `low` and `high`, from 0 to 1; 0 if these are equal.

    The distance of the two may exceed the greatest float.
    """
    span = (high - low) or 1.0
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


COLORS = ("#0067ad", "#b84a00", "#1d9353", "#c977a5", "#d28000", "#009aef", "#6e2978", "#6b6b6b")
"""Colours of curves here, in figures and on the page, in the order of their use.

They are those of Okabe and Ito, moved until the colour-blind tell any two apart and white paper
shows each (docs/decisions/0052).
"""

DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3), (10, 3, 2, 3))
"""Dashes of curves that share a colour, in the order of their use: lengths of lines and gaps."""


def choose_strokes(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of colour and dash of curves that are drawn together, by name.

    A name has the colour of its hash; where others of them have it, the next that fewer have, grey
    last. So it looks the same in a figure and on the page (`chosenStrokes` of
    frontend/src/state/colors.ts).
    """
    uses = [0] * len(COLORS)
    grey = len(COLORS) - 1
    found = {}
    for name in sorted(set(names)):
        liked = _hash_name(name)
        slots = [*((liked + more) % grey for more in range(grey)), grey]
        slot = min(slots, key=uses.__getitem__)
        found[name] = slot, uses[slot]
        uses[slot] += 1
    return found


def _hash_name(name: str) -> int:
    """Return the 32-bit FNV-1a hash of a name, which is short to write in any language."""
    found = 0x811C9DC5
    for byte in name.encode("utf-8", "replace"):
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


_GRAY = "#767676"  # readable on white and on black
_RANGES = 200
_TICKS = 5
_SHORT_LABEL = 6
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 252, 64, 36


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """One line of a drawing; `band` is half the height of the area around it, None for none."""

    xs: NDArray[np.float64]
    ys: NDArray[np.float64]
    band: NDArray[np.float64] | None = None


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
        f'{title}<polyline points="{points}" fill="none" stroke="{COLORS[0]}"/></svg>'
    )


class CurveDrawing:
    """Curves of runs as SVG, which a notebook shows; `save` writes them into a file."""

    def __init__(self, title: str, curves: Mapping[str, DrawnCurve], axis: str = "step") -> None:
        """Draw curves, of which there is at least one, by their names, over the axis `axis`."""
        self.title = title
        self.names = list(curves)
        self.svg = _drawing(curves, axis)

    @classmethod
    def of_series(cls, title: str, curves: Mapping[str, Series]) -> CurveDrawing:
        """Draw metrics over the x axis that all of them have, else over steps."""
        axes = {each.axis for each in curves.values()}
        axis = axes.pop() if len(axes) == 1 else ""
        drawn = {
            name: DrawnCurve(each.xs if axis else each.steps.astype(float), each.values)
            for name, each in curves.items()
        }
        return cls(title, drawn, axis or "step")

    def __repr__(self) -> str:
        return f"<CurveDrawing {self.title}: {', '.join(self.names)}>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the SVG and return its path."""
        file = Path(path)
        file.write_text(self.svg, encoding="utf-8")
        return file


def _drawing(curves: Mapping[str, DrawnCurve], axis: str) -> str:
    thin = {name: keep_extremes(curve, _RANGES) for name, curve in curves.items()}
    xs = [float(x) for curve in thin.values() for x in curve.xs]
    ys = [y for curve in thin.values() for y in _heights(curve)]
    top = 12.0 + 16 * len(thin)  # below the names
    height = int(top) + _HEIGHT
    box = (float(_LEFT), top, _WIDTH - 20.0, float(height - _BOTTOM))
    limits = (
        min(xs, default=0.0),
        max(xs, default=1.0),
        min(ys, default=0.0),
        max(ys, default=1.0),
    )
    parts = [_axes(box, limits, axis)]
    strokes = choose_strokes(thin)
    for i, (name, curve) in enumerate(thin.items()):
        slot, dash = strokes[name]
        color = COLORS[slot]
        lengths = " ".join(map(str, DASHES[dash % len(DASHES)]))
        dashes = f' stroke-dasharray="{lengths}"' if lengths else ""
        if curve.band is not None:
            area = [*zip(curve.xs, curve.ys + curve.band, strict=True)]
            area += reversed([*zip(curve.xs, curve.ys - curve.band, strict=True)])
            points = _line([x for x, _ in area], [y for _, y in area], box, limits)
            parts.append(f'<polygon points="{points}" fill="{color}" fill-opacity="0.2"/>')
        points = _line(curve.xs, curve.ys, box, limits)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"{dashes}/>'
        )
        if not points and len(curve.ys) and math.isfinite(curve.ys[0]):  # a single point
            place = _line([curve.xs[0]] * 2, [curve.ys[0]] * 2, box, limits).split()[0]
            x, _, y = place.partition(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{color}"/>')
        parts.append(f'<text x="{_WIDTH - 16}" y="{16 + 16 * i}" text-anchor="end"')
        parts.append(f' fill="{color}">{escape(visible(name))}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12" role="img"'
        f' aria-label="{escape(visible(", ".join(curves)))}">{"".join(parts)}</svg>'
    )


def _heights(curve: DrawnCurve) -> list[float]:
    ends = [curve.ys] if curve.band is None else [curve.ys - curve.band, curve.ys + curve.band]
    return [float(y) for each in ends for y in each if math.isfinite(y)]


def keep_extremes(curve: DrawnCurve, ranges: int) -> DrawnCurve:
    """Return a curve of many points as the extremes of each of its ranges: no spike is lost."""
    if len(curve.xs) <= 4 * ranges:
        return curve
    import numpy as np  # here: a terminal draws without

    parts = np.array_split(np.arange(len(curve.xs)), ranges)
    known = [part[np.isfinite(curve.ys[part])] for part in parts]
    ends = [(np.argmin(curve.ys[part]), np.argmax(curve.ys[part])) for part in known if len(part)]
    places = [p[i] for p, pair in zip(filter(len, known), ends, strict=True) for i in pair]
    kept = np.unique(np.array([0, *places, len(curve.xs) - 1]))
    band = None if curve.band is None else curve.band[kept]
    return DrawnCurve(curve.xs[kept], curve.ys[kept], band)


def _axes(
    box: tuple[float, float, float, float], limits: tuple[float, float, float, float], axis: str
) -> str:
    left, top, right, bottom = box
    low_x, high_x, low_y, high_y = limits
    parts = [f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="{_GRAY}"/>']
    labels = [((left + right) / 2, bottom + 30, "middle", escape(visible(axis)))]
    for value, text in _ticks(low_y, high_y):
        y = round(bottom - _share(value, low_y, high_y) * (bottom - top), 1)
        parts.append(
            f'<path d="M{left} {y}H{right}" stroke="{_GRAY}" stroke-opacity="0.25" fill="none"/>'
        )
        labels.append((left - 6, y + 4, "end", text))
    for value, text in _ticks(low_x, high_x):
        x = round(left + _share(value, low_x, high_x) * (right - left), 1)
        labels.append((x, bottom + 15, "middle", text))
    return "".join(parts) + "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{_GRAY}">{text}</text>'
        for x, y, anchor, text in labels
    )


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return round numbers from `low` to `high`, about five, with their labels.

    >>> [text for _, text in _ticks(0.13, 2.4)], [text for _, text in _ticks(3.0, 3.0)]
    (['0.5', '1', '1.5', '2'], ['3'])
    >>> [text for _, text in _ticks(0.99991, 0.99993)]
    ['0.99991', '0.999915', '0.99992', '0.999925', '0.99993']
    """
    span = high - low
    if not 0 < span < math.inf:
        return [(low, number(low))]
    power = math.floor(math.log10(span / _TICKS))
    factor = next(each for each in (1, 2, 5, 10) if span <= _TICKS * float(f"{each}e{power}"))
    step = float(f"{factor}e{power}")
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Read from its digits: a product of floats has others.
    values = [float(f"{place * factor}e{power}") for place in range(first, last + 1)]
    return list(zip(values, label_ticks(values), strict=True))


def label_ticks(values: Sequence[float]) -> list[str]:
    """Return the shortest labels that tell ticks apart; none is off by 1/1000 of their distance.

    >>> label_ticks([1e9, 1e9 + 2e4]), label_ticks([1000, 1000.0002]), label_ticks([0, 0.5, 1])
    (['1e9', '1.00002e9'], ['1000', '1000.0002'], ['0', '0.5', '1'])
    """
    ordered = sorted(values)
    distances = [high - low for low, high in pairwise(ordered) if high > low]
    error = (min(distances) if distances else abs(ordered[0]) if ordered else 0.0) / 1000
    plain = [_shortest(value, error, "f") for value in values]
    if max(map(len, plain), default=0) <= _SHORT_LABEL:
        return plain
    return min(plain, [_shortest(value, error, "e") for value in values], key=_longest)


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels))


def _shortest(value: float, error: float, form: str) -> str:
    """Return a value with as few digits as keep it within an error, plainly or as a power."""
    if abs(value) <= error:
        return "0"
    texts = (f"{value:.{digits}{form}}" for digits in range(324 if form == "f" else 18))
    text = next((each for each in texts if abs(float(each) - value) <= error), repr(value))
    mantissa, _, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if power and int(power) else mantissa


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
    return " ".join(
        f"{left + _share(x, low_x, high_x) * (right - left):.1f},"
        f"{bottom - _share(y, low_y, high_y) * (bottom - top):.1f}"
        for x, y in pairs
    )
