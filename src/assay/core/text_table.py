"""Tables as text: aligned lines that fit a terminal, and CSV that is safe to open."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.core.terminal import cell_count, elide, for_terminal

_GAP = "  "
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Texts of one column, its head first.

    Where a table is too wide, columns with `least` cells give up width, by `shorten`: first those
    of the first `turn`, the widest of them before others.
    """

    texts: Sequence[str]
    to_right: bool = False
    least: int | None = None
    turn: int = 0
    shorten: Callable[[str, int], str] = elide


def align_columns(columns: Sequence[TextColumn], width: int | None = None) -> list[str]:
    """Return lines that fit `width` cells as far as columns can give."""
    widths = [max(map(cell_count, column.texts)) for column in columns]
    if width is not None:
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        for turn in sorted({column.turn for column in columns}):
            least = {
                i: column.least
                for i, column in enumerate(columns)
                if column.turn == turn and column.least is not None
            }
            excess = _shrink(widths, least, excess)
    padded = [_pad(column, cells) for column, cells in zip(columns, widths, strict=True)]
    return [_GAP.join(parts).rstrip() for parts in zip(*padded, strict=True)]


def align_rows(rows: Sequence[Sequence[str]], *, to_right: Collection[int] = ()) -> list[str]:
    """Return rows of printable texts as lines; columns in `to_right` stand on the right."""
    columns = zip(*rows, strict=True)
    return align_columns([TextColumn(texts, i in to_right) for i, texts in enumerate(columns)])


def _shrink(widths: list[int], least: dict[int, int], excess: int) -> int:
    """Take `excess` cells from the columns in `least`; return how many could not be taken."""
    while excess > 0:
        able = [i for i, cells in least.items() if widths[i] > cells]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
        excess -= 1
    return excess


def _pad(column: TextColumn, width: int) -> list[str]:
    pad = str.rjust if column.to_right else str.ljust
    out = []
    for text in column.texts:
        if text.isascii() and len(text) <= width:
            out.append(pad(text, width))
            continue
        fitting = column.shorten(text, width)
        # A character may take two cells or none, and `pad` counts characters.
        out.append(pad(fitting, width - cell_count(fitting) + len(fitting)))
    return out


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of cells as CSV; an apostrophe is put before text that looks like a formula."""
    out = []
    for line in lines:
        # With any other line end than the standard's, `csv` before Python 3.13 does not quote a
        # carriage return inside of a cell.
        buffer = io.StringIO()
        csv.writer(buffer).writerow(harmless(cell) for cell in line)
        out.append(buffer.getvalue().removesuffix("\r\n") + "\n")
    return "".join(out)


def harmless(cell: Any) -> Any:
    r"""Return a table cell without spreadsheet formulas and terminal control codes.

    >>> harmless("=1+1"), harmless("-0.5"), harmless("\x1b[2Jred"), harmless(-1)
    ("'=1+1", '-0.5', '\\x1b[2Jred', -1)
    """
    if not isinstance(cell, str):
        return cell
    shown = for_terminal(cell, color=False)
    if not cell.lstrip(" ").startswith(_FORMULA):
        return shown
    try:
        float(cell)
    except ValueError:
        return f"'{shown}"
    return cell
