"""Check of a LaTeX document: which of its numbers are no longer those of the records."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from assay.core.formatting import count, number
from assay.query.catalog import Catalog
from assay.query.result_tables import MARK, ShownCell, ShownTable, follow_links, latex_text
from assay.store.layout import Project
from assay.store.tables import read_table, table_names

_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%(.*)")
_PLACE = re.compile(r"([^\s/:]+)/([^\s/:]+)/([^\s/:,]+)")
_ROW_END = "\\\\"
_CELL_END = re.compile(r"(?<!\\)&")
_NUMBER = re.compile(r"(?<![\w.])[-−]?(?=\.?\d)\d*(?:\.(\d+))?(?:[eE]([-+]?\d+))?")
_MATH = re.compile(r"\$|\\[,;!]|\{,\}|(?<=\d),(?=\d{3}(?:,\d{3})*(?:\.|\b))|\\(?=%)")
_POWER = re.compile(r"(?<=[\d.])\s*\\(?:times|cdot)\s*10\s*\^\s*(?:\{\s*([-+−]?\d+)\s*\}|(\d))")
_PLUS_MINUS = re.compile(r"\\pm\b\s*|\s*±\s*")
_COUNT = re.compile(r"\bn ?=? ?(\d{1,9})\b")
_COARSE_MEAN = 0.05
_COARSE_DEVIATION = 0.5
"""The largest part of a value that its last digit in a document may leave open."""

Place = tuple[str, str, str]
"""Table, row and column of a cell."""


@dataclass(frozen=True, slots=True)
class WrongNumber:
    """A number that its cell, TABLE/ROW/COLUMN, does not have; `now` says what it has."""

    line: int
    place: str
    now: str


def check_document(text: str, project: Project, catalog: Catalog) -> tuple[int, list[WrongNumber]]:
    """Return how many numbers of a document are marked, and those that are wrong.

    A number may be rounded, and be a percentage of a value up to 1. In a row of a table its mark
    (best, second, near the best) has to be right, too.
    """
    marked = list(_find_marked(text.splitlines()))
    names = {place[0] for _, _, place in marked}.intersection(table_names(project))
    tables = {name: follow_links(read_table(project, name), catalog) for name in names}
    wrong = []
    for line, body, place in marked:
        if said := _check(body, place, tables.get(place[0])):
            wrong.append(WrongNumber(line, "/".join(place), said))
    return len(marked), wrong


def _find_marked(lines: Sequence[str]) -> Iterator[tuple[int, str, Place]]:
    """Yield number and text of each line or row of a table, with each cell that a comment names.

    The comments stand on the lines before it, or at the end of its own.
    """
    first, row = 1, ""
    places: list[Place] = []
    for at, line in enumerate(lines, 1):
        body, named = _split(line)
        places += named
        if not row:
            first = at
        row = f"{row} {body}".strip()
        if not row or (_CELL_END.search(row) and _ROW_END not in row):  # it goes on
            continue
        yield from ((first, row, place) for place in places)
        row, places = "", []


def _split(line: str) -> tuple[str, list[Place]]:
    """Return a line without its comment, and the cells that the comment names."""
    found = _COMMENT.search(line)
    if found is None:
        return line, []
    body = line[: found.start()] + found[1]
    before, mark, named = found[2].partition(MARK)
    if not mark or before.strip():
        return body, []
    cells = _PLACE.findall(named.partition(":")[0])  # behind it are the runs
    return body, [(unquote(table), unquote(row), unquote(column)) for table, row, column in cells]


def _check(text: str, place: Place, table: ShownTable | None) -> str:
    """Return what is wrong about a number, "" for one that is right."""
    name, row_key, column_key = place
    if table is None:
        return f"is of no table: there is none named {name}"
    columns = [column.key for column in table.table.columns]
    row = next((row for row in table.rows if row.key == row_key), None)
    if row is None or column_key not in columns:
        return "is not in the table any more"
    at = columns.index(column_key)
    cell = row.cells[at]
    if cell.state in ("gone", "empty"):
        return "leads to no value any more"
    parts = _CELL_END.split(text)
    if len(parts) != len(columns):
        return "" if _shows(text, cell) else _now(cell, "")
    if not _shows(parts[at], cell):
        return _now(cell, parts[at])
    return _check_marks(parts[at], cell) if table.table.columns[at].best else ""


def _check_marks(shown: str, cell: ShownCell) -> str:
    """Return what a mark says of a cell that is not so; "" where each mark is right."""
    marks = {
        r"\textbf": ("the best", cell.is_best),
        r"\underline": ("the second", cell.is_second),
        r"\dagger": ("near the best", cell.is_near),
    }
    for mark, (rank, has_it) in marks.items():
        if mark in shown and not has_it:
            return f"is not {rank} of its column, as {mark} says"
    return ""


def _now(cell: ShownCell, shown: str) -> str:
    now = f"is {cell.text} now"
    if len(cell.samples) > 1 and "(n " not in cell.text:
        now += f", of {count(len(cell.samples), 'run')}"
    plain = " ".join(shown.replace(_ROW_END, "").split())
    return f"{now}, not {plain}" if plain else now


def _shows(text: str, cell: ShownCell) -> bool:
    """Return whether a text has the value of a cell, and deviation and n where it names them."""
    plain = _POWER.sub(_spell_power, _MATH.sub("", text))
    counts = _COUNT.search(plain)
    if counts is not None and cell.samples and int(counts[1]) != len(cell.samples):
        return False
    if not isinstance(cell.value, float) or not math.isfinite(cell.value):
        word = number(cell.value) if isinstance(cell.value, float) else latex_text(cell.text)
        whole = rf"(?<![\w.])(?<!(?<!\w)[-−]){re.escape(word)}(?!\w|[.-]\w)"
        return any(re.search(whole, each) for each in (text, _MATH.sub("", text)))
    values, *deviations = _PLUS_MINUS.split(plain) if cell.std is not None else [plain]
    numbers = list(_NUMBER.finditer(values))
    # A mean that is small against its deviation is written to the digits of this one.
    open_part = _COARSE_MEAN * max(abs(cell.value), (cell.std or 0.0) if deviations else 0.0)
    factors = [
        factor
        for factor in ((1, 100) if abs(cell.value) <= 1 else (1,))
        if any(_is_rounded(each, cell.value * factor, open_part * factor) for each in numbers)
    ]
    if not factors or cell.std is None or not deviations:
        return bool(factors)
    near = _NUMBER.search(deviations[0])
    deviation = cell.std * factors[0]
    return near is not None and _is_rounded(near, deviation, _COARSE_DEVIATION * deviation)


def _spell_power(found: re.Match[str]) -> str:
    """Return a power of ten as a program spells it: `\\times10^{-3}` is e-3."""
    return f"e{(found[1] or found[2]).replace('−', '-')}"


def _is_rounded(found: re.Match[str], value: float, open_part: float) -> bool:
    """Return whether a written number is a value, rounded to its digits but not to nothing.

    Its last digit may leave `open_part` of the value open.
    """
    written = float(found[0].replace("−", "-"))
    if math.isclose(written, value, rel_tol=1e-9):
        return True
    half = 0.5 * 10.0 ** (int(found[2] or 0) - len(found[1] or ""))
    return half <= open_part and abs(written - value) <= half * (1 + 1e-9)
