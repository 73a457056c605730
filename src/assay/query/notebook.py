"""Runs as a notebook shows them: a line with sparkline and links, and curves as SVG."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.formatting import number
from assay.core.terminal import visible

if TYPE_CHECKING:  # numpy comes with it, which `assay ls` does without
    from assay.store.series import Series

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
