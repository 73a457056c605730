"""Check of a LaTeX document: which of its numbers are no longer those of the records."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from assay.core.formatting import count
from assay.query.catalog import Catalog
from assay.query.result_tables import MARK, ShownCell, ShownTable, follow_links, latex_text
from assay.store.layout import Project
from assay.store.tables import read_table, table_names

_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%(.*)")
_PLACES = re.compile(rf"\s*{MARK}\s*(\S.*)")
_PLACE = re.compile(r"([^\s/:]+)/([^\s/:]+)/([^\s/:,]+)")
_ROW_END = "\\\\"
_CELL_END = re.compile(r"(?<!\\)&")
_NUMBER = re.compile(r"(?<![\w.])[-−]?(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?")
_MATH = re.compile(r"\$|\\[,;!]|\{,\}|\\(?=%)")
_PLUS_MINUS = re.compile(r"\\pm\b\s*|\s*±\s*")
_COARSE_MEAN = 0.05
_COARSE_DEVIATION = 0.5


@dataclass(frozen=True, slots=True)
class WrongNumber:
    """A number that its cell, TABLE/ROW/COLUMN, does not have; `now` says what it has."""

    line: int
    place: str
    now: str


@dataclass(frozen=True, slots=True)
class _MarkedText:
    """A row or a line of a document, without comments, and the cells that it has numbers of."""

    line: int
    text: str
    places: tuple[tuple[str, str, str], ...]


def check_document(text: str, project: Project, catalog: Catalog) -> tuple[int, list[WrongNumber]]:
    """Return how many numbers of a document are marked, and those that are wrong.

    A number may be rounded, and be a percentage of a value up to 1.
    """
    tables: dict[str, ShownTable] = {}
    known = table_names(project)
    total = 0
    wrong = []
    for marked in _marked_texts(text):
        for place in marked.places:
            total += 1
            name = place[0]
            if name in known and name not in tables:
                tables[name] = follow_links(read_table(project, name), catalog)
            said = _check(marked.text, place, tables.get(name))
            if said:
                wrong.append(WrongNumber(marked.line, "/".join(place), said))
    return total, wrong


def _marked_texts(text: str) -> Iterator[_MarkedText]:
    """Yield what is marked: by comments on the lines before it, or at the end of its line."""
    lines = text.splitlines()
    waiting: list[tuple[str, str, str]] = []
    at = 0
    while at < len(lines):
        first = at + 1
        body, places = _split(lines[at])
        at += 1
        if not body.strip():
            waiting += places
            continue
        # A row may go on in the next lines.
        while _CELL_END.search(body) and _ROW_END not in body and at < len(lines):
            more, others = _split(lines[at])
            body += f" {more}"
            places += others
            at += 1
        if waiting or places:
            yield _MarkedText(first, body, (*waiting, *places))
        waiting = []


def _split(line: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Return a line without its comment, and the cells that the comment names."""
    found = _COMMENT.search(line)
    if found is None:
        return line, []
    body = line[: found.start()] + found[1]
    marked = _PLACES.fullmatch(found[2])
    return body, _places(marked[1]) if marked is not None else []


def _places(text: str) -> list[tuple[str, str, str]]:
    named = text.partition(":")[0]  # behind it are the runs
    return [
        (unquote(found[1]), unquote(found[2]), unquote(found[3]))
        for found in _PLACE.finditer(named)
    ]


def _check(text: str, place: tuple[str, str, str], table: ShownTable | None) -> str:
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
    shown = parts[at] if len(parts) == len(columns) else text
    return "" if _shows(shown, cell) else _now(cell, shown if shown is not text else "")


def _now(cell: ShownCell, shown: str) -> str:
    now = f"is {cell.text} now"
    if len(cell.samples) > 1 and "(n " not in cell.text:
        now += f", of {count(len(cell.samples), 'run')}"
    plain = " ".join(shown.replace(_ROW_END, "").split())
    return f"{now}, not {plain}" if plain else now


def _shows(text: str, cell: ShownCell) -> bool:
    """Return whether a text has the value of a cell; beside ± its deviation, too."""
    if not isinstance(cell.value, float):
        return latex_text(cell.text) in text
    plain = _MATH.sub("", text)
    values, *deviations = _PLUS_MINUS.split(plain) if cell.std is not None else [plain]
    numbers = list(_NUMBER.finditer(values))
    factors = [
        factor
        for factor in _factors(cell.value)
        if any(_is_rounded(each, cell.value * factor, _COARSE_MEAN) for each in numbers)
    ]
    if not factors or cell.std is None or not deviations:
        return bool(factors)
    near = _NUMBER.search(deviations[0])
    return near is not None and _is_rounded(near, cell.std * factors[0], _COARSE_DEVIATION)


def _factors(value: float) -> Sequence[int]:
    return (1, 100) if abs(value) <= 1 else (1,)


def _is_rounded(found: re.Match[str], value: float, coarse: float) -> bool:
    """Return whether a written number is a value, rounded to its digits but not to nothing."""
    written = float(found[0].replace("−", "-"))
    if math.isclose(written, value, rel_tol=1e-9):
        return True
    half = 0.5 * 10.0 ** (int(found[3] or 0) - len(found[2] or ""))
    return half <= coarse * abs(value) and abs(written - value) <= half * (1 + 1e-9)
