"""Routes of result tables: read with links followed, change, export and import."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Response
from pydantic import Field

from assay.core.errors import AssayError, InputError
from assay.formats.json_codec import to_plain
from assay.query.catalog import Asked
from assay.query.result_tables import ShownCell, ShownTable, cell_behind, follow_links, seen_now
from assay.record import table_edits
from assay.record.table_edits import TableChange
from assay.store.refresh_index import Synchronized
from assay.store.tables import (
    Cell,
    Link,
    ResultTable,
    TableColumn,
    TableEdit,
    read_history,
    read_table,
    table_file,
    table_names,
    table_revision,
)
from assay.web.answers import HomeOf, MissingError, Model, make_router, spell_for_page
from assay.web.routes.live import WatchesOf
from assay.web.site import Home

MAX_HISTORY = 2_000

router = make_router(conflicts=True)

Name = Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class LinkFacts(Model):
    """A value of runs: of those named, or of all that an expression is true for."""

    value: Annotated[str, Field(max_length=2_000)]
    runs: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=1_000)
    where: Annotated[str, Field(max_length=20_000)] = ""


class CellFacts(Model):
    text: str
    state: str
    value: float | str | None
    std: float | str | None
    count: int
    runs: list[str]
    left_out: dict[str, str]
    link: LinkFacts | None
    seen: str
    is_best: bool
    is_second: bool
    is_near: bool
    p: float | None


class RowFacts(Model):
    key: str
    cells: list[CellFacts]


class TableFacts(Model):
    """A table with its links followed. `revision` changes with the file."""

    name: str
    title: str
    notes: str
    revision: str
    columns: tuple[TableColumn, ...]
    rows: list[RowFacts]
    legend: list[str]
    stale: int


class TableLine(Model):
    name: str
    title: str
    rows: int
    columns: int
    stale: int
    changed: float
    problem: str


class EditFacts(Model):
    at: float
    who: str
    what: str
    row: str
    column: str
    old: Any
    new: Any


class NewTable(Model):
    """Table to be made: empty, or with a row for each run.

    With `group` a row stands for the runs that differ only in their seed.
    """

    name: Annotated[str, Field(max_length=64)]
    title: Annotated[str, Field(max_length=1_000)] = ""
    columns: list[Annotated[str, Field(max_length=1_000)]] = Field(default=[], max_length=100)
    where: Annotated[str, Field(max_length=20_000)] = ""
    runs: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=1_000)
    group: bool = False


class ChangeFacts(Model):
    """One change; `link` for a cell that leads to a value."""

    what: Literal[
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
        "accept",
    ]
    row: Annotated[str, Field(max_length=200)] = ""
    column: Annotated[str, Field(max_length=200)] = ""
    text: Annotated[str, Field(max_length=20_000)] | None = None
    link: LinkFacts | None = None
    place: Annotated[int, Field(ge=0, le=100_000)] | None = None
    title: Annotated[str, Field(max_length=1_000)] | None = None
    best: Literal["", "max", "min"] | None = None


class Changes(Model):
    """Changes made together to the table at `revision`; "" for its current one."""

    changes: list[ChangeFacts] = Field(max_length=1_000)
    revision: str = ""


class CsvText(Model):
    text: Annotated[str, Field(max_length=4_000_000)]


@router.get("/api/tables")
def tables(home: HomeOf) -> list[TableLine]:
    """Return all tables of the project; one that is damaged says so."""
    found = []
    for name in table_names(home.project):
        changed = os.stat(table_file(home.project, name)).st_mtime
        try:
            table = follow_links(read_table(home.project, name), home.catalog)
        except AssayError as error:
            line = TableLine(
                name=name,
                title=name,
                rows=0,
                columns=0,
                stale=0,
                changed=changed,
                problem=error.what,
            )
        else:
            line = TableLine(
                name=name,
                title=table.table.title or name,
                rows=len(table.rows),
                columns=len(table.table.columns),
                stale=table.stale,
                changed=changed,
                problem="",
            )
        found.append(line)
    return found


@router.post("/api/tables")
def new_table(home: HomeOf, watches: WatchesOf, given: NewTable) -> TableFacts:
    """Make a table, with a row for each run that is asked for."""
    table_edits.create(
        home.project,
        given.name,
        title=given.title,
        columns=[] if _has_rows(given) else given.columns,
    )
    if _has_rows(given):
        table_edits.fill(home.project, given.name, _rows_of(home, given), what="filled")
    return _announce(home, watches, given.name)


@router.get("/api/tables/{name}")
def table(home: HomeOf, name: Name) -> TableFacts:
    """Return a table with its links followed."""
    return _facts(home, name)


@router.delete("/api/tables/{name}")
def remove_table(home: HomeOf, watches: WatchesOf, name: Name) -> None:
    """Delete a table and its history."""
    table_edits.remove(home.project, name)
    watches.of(home).announce(Synchronized(), tables=[name])


@router.post("/api/tables/{name}/changes")
def change_table(home: HomeOf, watches: WatchesOf, name: Name, given: Changes) -> TableFacts:
    """Make changes, all of them or none."""
    before = _read(home, name)
    changes = [_change(each, before, home) for each in given.changes]
    table_edits.change(home.project, name, *changes, revision=given.revision)
    return _announce(home, watches, name)


@router.get("/api/tables/{name}/history")
def table_history(
    home: HomeOf,
    name: Name,
    row: Annotated[str, Query(max_length=200)] = "",
    column: Annotated[str, Query(max_length=200)] = "",
) -> list[EditFacts]:
    """Return the changes of a table, or of one cell, the newest first."""
    _read(home, name)
    found = [
        edit
        for edit in read_history(home.project, name)
        if (not row or edit.row == row) and (not column or edit.column == column)
    ]
    return [_edit(edit) for edit in reversed(found[-MAX_HISTORY:])]


@router.get("/api/tables/{name}/export", response_class=Response)
def export_table(
    home: HomeOf, name: Name, form: Literal["markdown", "latex", "csv", "html", "json"]
) -> Response:
    """Return a table for a paper or a spreadsheet."""
    found = follow_links(_read(home, name), home.catalog)
    text, ending = {
        "markdown": (found.to_markdown, "md"),
        "latex": (found.to_latex, "tex"),
        "csv": (found.to_csv, "csv"),
        "html": (found.to_html, "html"),
        "json": (found.to_json, "json"),
    }[form]
    headers = {"content-disposition": f'attachment; filename="{name}.{ending}"'}
    return Response(text(), media_type="text/plain; charset=utf-8", headers=headers)


@router.post("/api/tables/{name}/import")
def import_table(home: HomeOf, watches: WatchesOf, name: Name, given: CsvText) -> TableFacts:
    """Add the rows of a CSV file."""
    table_edits.fill(home.project, name, table_edits.csv_rows(given.text), what="imported")
    return _announce(home, watches, name)


@router.post("/api/follow")
def follow_link(home: HomeOf, given: LinkFacts) -> CellFacts:
    """Return what a link would show, before it is put into a cell."""
    return _cell(cell_behind(_link(given), home.catalog))


def _has_rows(given: NewTable) -> bool:
    return bool(given.where or given.runs)


def _rows_of(home: Home, given: NewTable) -> list[dict[str, Cell]]:
    """Return a row for each run or group: its tag, and a link for each column."""
    where = given.where
    if given.runs:
        listed = ", ".join(f'"{each}"' for each in given.runs if each.isalnum())
        where = f"id in ({listed})"
    columns = [name for name in given.columns if name != "tag"]
    group = ("config",) if given.group else ()
    page = home.catalog.page(Asked(where=where, group=group, limit=table_edits.MAX_ROWS))
    members = [(group.tag or group.ids[0], group.ids) for group in page.groups]
    members += [(row.run.tag or row.run.id, (row.run.id,)) for row in page.rows]
    rows: list[dict[str, Cell]] = []
    for tag, ids in members:
        cells: dict[str, Cell] = {"tag": tag}
        for name in columns:
            cells[name] = _with_seen(Link(value=name, runs=ids), home)
        rows.append(cells)
    return rows


def _link(given: LinkFacts) -> Link:
    return Link(value=given.value, runs=tuple(given.runs), where=given.where)


def _with_seen(link: Link, home: Home) -> Link:
    """Return a link that remembers what it shows now."""
    return replace(link, seen=seen_now(cell_behind(link, home.catalog)))


def _change(given: ChangeFacts, before: ResultTable, home: Home) -> TableChange:
    new: Any = given.text
    match given.what:
        case "cell" if given.link is not None:
            new = _with_seen(_link(given.link), home)
        case "accept":
            row = before.row(given.row)
            cell = row.cells.get(given.column) if row is not None else None
            if not isinstance(cell, Link):
                raise InputError("Only a cell that leads to a value can take over what is new.")
            return TableChange(
                what="cell", row=given.row, column=given.column, new=_with_seen(cell, home)
            )
        case "move-row" | "move-column":
            new = given.place
        case "column":
            facts = {"title": given.title, "best": given.best}
            new = {key: value for key, value in facts.items() if value is not None}
        case _:
            pass
    return TableChange(what=given.what, row=given.row, column=given.column, new=new)


def _revision(home: Home, name: str) -> str:
    """Return the revision of a table, "" for one that `_read` refuses."""
    try:
        return table_revision(home.project, name)
    except OSError:
        return ""


def _read(home: Home, name: str) -> ResultTable:
    try:
        return read_table(home.project, name)
    except FileNotFoundError:
        raise MissingError(f"There is no table {name}.", fix="it may have been removed") from None


def _facts(home: Home, name: str) -> TableFacts:
    # Before the table is read: an edit in between is then a conflict, and is not lost.
    revision = _revision(home, name)
    found: ShownTable = follow_links(_read(home, name), home.catalog)
    return TableFacts(
        name=name,
        title=found.table.title or name,
        notes=found.table.notes,
        revision=revision,
        columns=found.table.columns,
        rows=[
            RowFacts(key=row.key, cells=[_cell(cell) for cell in row.cells]) for row in found.rows
        ],
        legend=found.legend("Bold", "Underlined"),
        stale=found.stale,
    )


def _announce(home: Home, watches: Any, name: str) -> TableFacts:
    watches.of(home).announce(Synchronized(), tables=[name])
    return _facts(home, name)


def _cell(cell: ShownCell) -> CellFacts:
    link = cell.link
    return CellFacts.of(cell, count=len(cell.samples), link=link and LinkFacts.of(link))


def _edit(edit: TableEdit) -> EditFacts:
    return EditFacts.of(
        edit,
        at=edit.at_ns / 1e9,
        old=spell_for_page(to_plain(edit.old)),
        new=spell_for_page(to_plain(edit.new)),
    )
