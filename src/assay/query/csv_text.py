"""CSV that is safe to open: in a spreadsheet, and in a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from assay.core.terminal import for_terminal

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


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
