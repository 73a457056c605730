"""Aligned lines of a list of runs, shortened to the width of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from assay.core.terminal import cell_count
from assay.query.columns import Column

_ELASTIC = ("tag", "desc", "note", "reason", "labels", "project", "folder", "parent")
_LEAST_CELLS = 8
_GAP = "  "


def aligned(
    columns: Sequence[Column],
    texts: Sequence[Sequence[str]],
    to_right: Sequence[bool],
    width: int | None,
) -> list[str]:
    """Return lines of the texts of each column; they fit `width` as far as columns can give."""
    widths = [max(map(cell_count, each)) for each in texts]
    if width is not None:
        widths = _fitted(columns, texts, widths, width)
    padded = [
        _padded(each, cells, column, is_right)
        for each, cells, column, is_right in zip(texts, widths, columns, to_right, strict=True)
    ]
    return [_GAP.join(parts).rstrip() for parts in zip(*padded, strict=True)]


def _fitted(
    columns: Sequence[Column], texts: Sequence[Sequence[str]], widths: list[int], limit: int
) -> list[int]:
    """Return widths that together stay within `limit`, if columns of words can give so much.

    The widest gives first; the best value only after all others.
    """
    fitted = list(widths)
    excess = sum(fitted) + len(_GAP) * (len(fitted) - 1) - limit
    least = {i: _LEAST_CELLS for i, column in enumerate(columns) if column.name in _ELASTIC}
    excess = _shrink(fitted, least, excess)
    least = {
        i: max(_LEAST_CELLS, _widest_number(texts[i]))
        for i, column in enumerate(columns)
        if column.name == "best"
    }
    _shrink(fitted, least, excess)
    return fitted


def _shrink(widths: list[int], least: dict[int, int], excess: int) -> int:
    """Take `excess` cells from the columns in `least`; return how many could not be taken."""
    while excess > 0:
        able = [i for i, cells in least.items() if widths[i] > cells]
        if not able:
            break
        widest = max(able, key=lambda i: widths[i])
        widths[widest] -= 1
        excess -= 1
    return excess


def _widest_number(texts: Sequence[str]) -> int:
    return max(cell_count(text.rpartition(" ")[2]) for text in texts)


def _padded(texts: Sequence[str], width: int, column: Column, is_right: bool) -> list[str]:
    pad = str.rjust if is_right else str.ljust
    out = []
    for text in texts:
        is_short = text.isascii() and len(text) <= width
        fitting = text if is_short else column.shorten(text, width)
        # A character may take two cells or none, and `pad` counts characters.
        out.append(pad(fitting, width - cell_count(fitting) + len(fitting)))
    return out
