"""Edits of result tables, by anyone: the only writer of a table and of its history."""

from __future__ import annotations

import contextlib
import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from assay.core.directory import open_directory
from assay.core.errors import ConflictError, InputError, RecordError
from assay.core.ids import slug
from assay.formats.json_codec import dumps, to_plain
from assay.record.edits import append_line, user
from assay.store.layout import Project, refusal, shared_folder
from assay.store.tables import (
    Best,
    Cell,
    Link,
    ResultTable,
    TableColumn,
    TableEdit,
    TableRow,
    check_table_name,
    history_file,
    read_table,
    table_file,
    table_revision,
    write_table,
)

MAX_ROWS = 10_000
MAX_COLUMNS = 500
MAX_CELL = 20_000

What = Literal[
    "title",
    "notes",
    "cell",
    "add-row",
    "remove-row",
    "move-row",
    "add-column",
    "remove-column",
    "move-column",
    "column",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One change. `new` is a title, note, cell (None empties it), position, or column facts."""

    what: What
    row: str = ""
    column: str = ""
    new: Any = None


def create(
    project: Project, name: str, *, title: str = "", columns: Sequence[str] = ()
) -> ResultTable:
    """Make a table. InputError when there is one of that name."""
    table = ResultTable(name=check_table_name(name), title=title or name)
    for each in columns:
        table = _with_column(table, each)[0]
    with _alone(project, name):
        if table_file(project, name).exists():
            raise InputError(f"There is a table {name} already.", fix="choose another name")
        write_table(project, table)
        _note(project, name, TableEdit(what="created", new=table.title))
    return table


def change(project: Project, name: str, *changes: TableChange, revision: str = "") -> ResultTable:
    """Make all changes or none; InputError for a missing table, row or column.

    ConflictError when the table is not at `revision` any more, if that is given.
    """
    with _alone(project, name):
        table = _read(project, name)
        if revision and revision != table_revision(project, name):
            raise ConflictError(
                "The table was changed meanwhile.", fix="look at what is new, then try again"
            )
        edits = []
        for each in changes:
            before = table
            table, old = _change(table, each)
            if table != before:
                row, column = each.row, each.column
                if each.what == "add-row":
                    row = table.rows[-1].key
                if each.what == "add-column":
                    column = table.columns[-1].key
                edits.append(
                    TableEdit(
                        what=each.what, row=row, column=column, old=old, new=to_plain(each.new)
                    )
                )
        if edits:
            write_table(project, table)
            for edit in edits:
                _note(project, name, edit)
        return table


def fill(
    project: Project, name: str, rows: Sequence[Mapping[str, Cell]], *, what: str
) -> ResultTable:
    """Add rows whose cells stand under titles of columns; columns that are not there are made."""
    with _alone(project, name):
        table = _read(project, name)
        _check_rows(len(table.rows) + len(rows))
        keys: dict[str, str] = {}
        for title in dict.fromkeys(title for row in rows for title in row):
            table, keys[title] = _with_column(table, title)
        fresh = [
            TableRow(
                key=f"r{number}",
                cells={keys[title]: _cell(cell) for title, cell in row.items() if cell != ""},
            )
            for number, row in enumerate(rows, _next_number(table))
        ]
        table = replace(table, rows=(*table.rows, *fresh))
        write_table(project, table)
        _note(project, name, TableEdit(what=what, new=len(rows)))
        return table


def csv_rows(text: str) -> list[dict[str, Cell]]:
    """Return the rows of a CSV file with a head, for `fill`.

    Apostrophes that hide formulas are removed. InputError for what is no CSV, or more of it than a
    table holds.
    """
    file = io.StringIO(text.removeprefix("\ufeff"))
    lines: list[list[str]] = []
    try:
        for line in csv.reader(file, strict=True):
            lines.append(line)
            _check_rows(len(lines) - 1)  # the first one is the head
    except csv.Error as error:
        raise InputError(f"This is no CSV: {error}.") from error
    if not lines or not any(lines[0]):
        raise InputError("This CSV has no head: its first line has to name the columns.")
    _check_columns(len(lines[0]))
    head = [title.strip() or f"column {i}" for i, title in enumerate(lines[0], 1)]
    if len(set(head)) < len(head):
        raise InputError("Two columns of this CSV have the same name.")
    rows: list[dict[str, Cell]] = []
    for number, line in enumerate(lines[1:], 2):
        if line and len(line) != len(head):
            raise InputError(f"Line {number} has {len(line)} cells, the head has {len(head)}.")
        if line:
            cells = map(_unhidden, line)
            rows.append(dict(zip(head, cells, strict=True)))
    return rows


def remove(project: Project, name: str) -> None:
    """Delete a table and its history. InputError when there is none."""
    _read(project, name)
    with _alone(project, name):
        try:
            table_file(project, name).unlink()
            history_file(project, name).unlink(missing_ok=True)
        except OSError as error:
            raise refusal(
                error, table_file(project, name), "The table cannot be removed"
            ) from error


def _change(table: ResultTable, asked: TableChange) -> tuple[ResultTable, Any]:
    """Return the table after a change, and what was there before it."""
    match asked.what:
        case "title":
            return replace(table, title=str(asked.new or "")), table.title
        case "notes":
            return replace(table, notes=str(asked.new or "")), table.notes
        case "cell":
            return _with_cell(table, asked)
        case "add-row":
            _check_rows(len(table.rows) + 1)
            row = TableRow(key=f"r{_next_number(table)}")
            return replace(table, rows=(*table.rows, row)), None
        case "remove-row":
            row = _row(table, asked.row)
            others = tuple(each for each in table.rows if each.key != row.key)
            return replace(table, rows=others), to_plain(row)
        case "move-row":
            rows, place = _move(table.rows, _row(table, asked.row), asked.new)
            return replace(table, rows=rows), place
        case "add-column":
            return _with_column(table, str(asked.new or "column"), is_new=True)[0], None
        case "remove-column":
            return _without_column(table, _column(table, asked.column))
        case "move-column":
            columns, place = _move(table.columns, _column(table, asked.column), asked.new)
            return replace(table, columns=columns), place
        case "column":
            return _with_column_facts(table, _column(table, asked.column), asked.new)


def _with_cell(table: ResultTable, asked: TableChange) -> tuple[ResultTable, Any]:
    row = _row(table, asked.row)
    column = _column(table, asked.column)
    cells = dict(row.cells)
    old = cells.pop(column.key, None)
    if asked.new not in (None, ""):
        cells[column.key] = _cell(asked.new)
    return _with_row(table, replace(row, cells=cells)), to_plain(old)


def _without_column(table: ResultTable, column: TableColumn) -> tuple[ResultTable, Any]:
    rows = []
    removed = {}
    for row in table.rows:
        cells = dict(row.cells)
        if column.key in cells:
            removed[row.key] = cells.pop(column.key)
        rows.append(replace(row, cells=cells))
    columns = tuple(each for each in table.columns if each.key != column.key)
    old = {"column": to_plain(column), "cells": to_plain(removed)}
    return replace(table, columns=columns, rows=tuple(rows)), old


def _with_column_facts(
    table: ResultTable, column: TableColumn, new: Any
) -> tuple[ResultTable, Any]:
    """Return the table with another title or direction of a column."""
    facts = new if isinstance(new, Mapping) else {}
    fresh = replace(
        column,
        title=str(facts.get("title", column.title)),
        best=_best(facts.get("best", column.best)),
    )
    columns = tuple(fresh if each.key == column.key else each for each in table.columns)
    return replace(table, columns=columns), to_plain(column)


def _read(project: Project, name: str) -> ResultTable:
    try:
        return read_table(project, name)
    except FileNotFoundError:
        raise InputError(f"There is no table {name}.", fix="`assay table show` lists all") from None


def _row(table: ResultTable, key: str) -> TableRow:
    found = table.row(key)
    if found is None:
        raise InputError(f"The table {table.name} has no row {key!r}.")
    return found


def _column(table: ResultTable, key: str) -> TableColumn:
    found = table.column(key)
    if found is None:
        raise InputError(f"The table {table.name} has no column {key!r}.")
    return found


def _with_row(table: ResultTable, row: TableRow) -> ResultTable:
    return replace(table, rows=tuple(row if each.key == row.key else each for each in table.rows))


def _with_column(
    table: ResultTable, title: str, *, is_new: bool = False
) -> tuple[ResultTable, str]:
    """Return the table with a column of this title, new or existing, and its key."""
    for each in table.columns:
        if not is_new and title == each.title:
            return table, each.key
    _check_columns(len(table.columns) + 1)
    base = slug(title).replace(".", "-") or "column"
    taken = {each.key for each in table.columns}
    key = next(
        name
        for i in range(1, MAX_COLUMNS + 2)
        if (name := base if i == 1 else f"{base}-{i}") not in taken
    )
    return replace(table, columns=(*table.columns, TableColumn(key=key, title=title))), key


def _check_rows(count: int) -> None:
    if count > MAX_ROWS:
        raise InputError(f"A table has at most {MAX_ROWS:,} rows.")


def _check_columns(count: int) -> None:
    if count > MAX_COLUMNS:
        raise InputError(f"A table has at most {MAX_COLUMNS} columns.")


def _next_number(table: ResultTable) -> int:
    """Return a number above those of all keys such as `r7`."""
    numbers = [
        int(row.key[1:]) for row in table.rows if row.key[:1] == "r" and row.key[1:].isdecimal()
    ]
    return max(numbers, default=0) + 1


def _move(items: tuple[Any, ...], item: Any, to: Any) -> tuple[tuple[Any, ...], int]:
    at = items.index(item)
    others = [each for each in items if each is not item]
    if not isinstance(to, int):
        raise InputError("A place in the order is a whole number.")
    others.insert(max(0, min(len(others), to)), item)
    return tuple(others), at


def _cell(value: Any) -> Cell:
    if isinstance(value, Link):
        if not value.value or bool(value.runs) == bool(value.where):
            raise InputError("A link names a value and either runs or a query.")
        return value
    text = str(value)
    if len(text) > MAX_CELL:
        raise InputError(f"A cell holds at most {MAX_CELL:,} characters.")
    return text


def _best(value: Any) -> Best:
    if value not in ("", "max", "min"):
        raise InputError(f"The best of a column is its max or its min, not {value!r}.")
    return value  # type: ignore[no-any-return]


def _unhidden(cell: str) -> str:
    return cell[1:] if len(cell) > 1 and cell[0] == "'" and cell[1] in "=+-@\t\r" else cell


def _note(project: Project, name: str, edit: TableEdit) -> None:
    """Append a change to the history of a table."""
    complete = replace(edit, who=edit.who or user(), at_ns=edit.at_ns or time.time_ns())
    path = history_file(project, name)
    try:
        append_line(path, dumps(complete))
    except OSError as error:
        raise refusal(error, path, "The history of the table cannot be written") from error


@contextlib.contextmanager
def _alone(project: Project, name: str) -> Iterator[None]:
    """Hold a table, so that of two changes at once none is lost. The lock ends with the process."""
    folder = shared_folder(project, "tables")
    with contextlib.ExitStack() as held:
        try:
            opened = held.enter_context(open_directory(folder, follow=True))
            held.enter_context(opened.alone())
        except OSError as error:
            what = f"The table {name} cannot be held: {error}"
            raise RecordError(what, where=str(folder)) from error
        yield
