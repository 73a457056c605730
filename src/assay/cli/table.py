"""`assay table`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from assay.cli.completion import (
    complete_columns,
    complete_expression,
    complete_runs,
    complete_tables,
)
from assay.cli.terminal import echo, paint, use_color, width
from assay.core.errors import InputError, RecordError, choose, did_you_mean
from assay.core.formatting import count, moment
from assay.core.regular_file import read_bytes
from assay.core.terminal import visible
from assay.core.text_table import align_rows
from assay.formats.json_codec import dumps
from assay.query.catalog import Asked, Catalog
from assay.query.find import label_rows, select_group, select_runs
from assay.query.result_tables import (
    ShownCell,
    ShownRow,
    ShownTable,
    cell_behind,
    follow_links,
    seen_now,
)
from assay.record import table_edits
from assay.record.table_edits import TableChange
from assay.store.known_projects import project_here
from assay.store.layout import Project
from assay.store.tables import (
    MAX_BYTES,
    Link,
    ResultTable,
    read_history,
    read_table,
    table_names,
)
from assay.store.whole_output import replace_file

FORMS = {
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".html": "html",
    ".json": "json",
}


@click.group(
    name="table", help="Read and write result tables, whose cells are texts or values of runs."
)
def command() -> None:
    pass


@command.command(
    name="show",
    help="""Show a table as it is now: stale cells are marked with what they were. Without NAME,
    list the tables of this project.""",
)
@click.argument("name", required=False, shell_complete=complete_tables)
@click.option("--history", is_flag=True, help="Show its changes instead: when, who, what.")
@click.option(
    "--as",
    "form",
    type=click.Choice(list(FORMS.values())),
    help="For a paper or a program; LaTeX is that of booktabs.",
)
@click.option(
    "-o", "--to", "file", metavar="FILE", help="Write it there, in the form of the ending."
)
def show(name: str | None, history: bool, form: str | None, file: str | None) -> int:
    project = project_here()
    if name is None:
        return _list_tables(project)
    table = _read(project, name)
    if history:
        for edit in read_history(project, name):
            place = " ".join(filter(None, [edit.row, edit.column]))
            change = f"{_plain(edit.old)} -> {_plain(edit.new)}"
            echo(
                visible(f"{moment(edit.at_ns)}  {edit.who}  {edit.what} {place}  {change}".rstrip())
            )
        return 0
    chosen = form or FORMS.get(Path(file or "").suffix.lower())
    if file and chosen is None:
        raise InputError(
            f"{file} is no kind of table.",
            fix=f"--as {', '.join(FORMS.values())}; or a file ending in {', '.join(FORMS)}",
        )
    found = follow_links(table, _catalog(project))
    if chosen is None:
        echo("\n".join(_lines(found)))
        return 0
    return _export(found, name, chosen, file)


def _list_tables(project: Project) -> int:
    names = table_names(project)
    if not names:
        echo("There is no table yet. `assay table set NAME ROW COLUMN VALUE` makes one.")
        return 0
    catalog = _catalog(project)
    for name in names:
        try:
            table = follow_links(read_table(project, name), catalog)
        except RecordError as error:
            echo(f"{name}  cannot be read: {visible(error.what)}")
            continue
        stale = f", {table.stale} stale" if table.stale else ""
        size = f"{count(len(table.rows), 'row')}, {count(len(table.table.columns), 'column')}"
        echo(f"{name}  {visible(table.table.title)}  ({size}{stale})")
    return 0


def _export(table: ShownTable, name: str, form: str, file: str | None) -> int:
    """Write a table in a form, to the file or to the terminal."""
    if table.stale:
        echo(
            f"{count(table.stale, 'cell')} changed since somebody looked: assay table show {name}",
            err=True,
        )
    writers = {
        "markdown": table.to_markdown,
        "latex": table.to_latex,
        "csv": table.to_csv,
        "html": table.to_html,
        "json": table.to_json,
    }
    text = writers[form]()
    if file is None:
        echo(text, end="" if text.endswith("\n") else "\n")
        return 0
    replace_file(Path(file), text.encode("utf-8", "replace"), "The table cannot be written")
    return 0


@command.command(
    name="set",
    help="""Set a cell. VALUE is a text; with --run or --where the name of a column of `assay ls`,
    and the cell then shows that value of the run, or mean and deviation over several:

    \b
    assay table set digits "small CNN" accuracy valid/acc --run best:valid/acc
    assay table set digits "small CNN" accuracy valid/acc --where 'tag = small'

    Table, row (by the text of its first column, or its key) and column are made when they are not
    there.""",
)
@click.argument("name", shell_complete=complete_tables)
@click.argument("row")
@click.argument("column")
@click.argument("value")
@click.option(
    "--run",
    "runs",
    metavar="RUN|EXPR",
    multiple=True,
    shell_complete=complete_runs,
    help="Runs that the value is of; several: their mean.",
)
@click.option(
    "--where",
    metavar="EXPR",
    default="",
    shell_complete=complete_expression,
    help="The runs that the value is of, later ones too.",
)
@click.option(
    "--best", type=click.Choice(["max", "min"]), help="Which values of the column are good."
)
def set_(
    name: str,
    row: str,
    column: str,
    value: str,
    runs: tuple[str, ...],
    where: str,
    best: str | None,
) -> int:
    project = project_here()
    if runs and where:
        raise InputError("--run and --where are two ways to name runs.", fix="give one of them")
    new: Any = value
    catalog = _catalog(project)
    if runs or where:
        ids = tuple(run.id for run in select_runs(runs, project))
        new = _link(Link(value=value, runs=ids, where=where), catalog)
    if name not in table_names(project):
        table_edits.create(project, name)
    table = _read(project, name)
    table, row_key = _with_row(project, name, table, row, by_key=True)
    table, column_key = _with_column(project, name, table, column, by_key=True)
    changes = [TableChange(what="cell", row=row_key, column=column_key, new=new)]
    if best is not None:
        changes.append(TableChange(what="column", column=column_key, new={"best": best}))
    table = table_edits.change(project, name, *changes)
    echo("\n".join(_lines(follow_links(table, catalog))))
    return 0


@command.command(
    name="fill",
    help="""Add a row for the runs of each EXPR, and a column for each -m: a metric or a key, with
    `:max` or `:min` where large or small values of it are good. Cells are mean ± deviation:

    \b
    assay table fill acc 'tag = a' 'tag = b' -m valid/acc.max:max -m model.width

    A row has the tag that its runs share, else the EXPR. Later runs that fulfil it count, too.""",
)
@click.argument("name", shell_complete=complete_tables)
@click.argument(
    "expressions", metavar="EXPR...", nargs=-1, required=True, shell_complete=complete_expression
)
@click.option(
    "-m",
    "--metric",
    "metrics",
    metavar="NAME[:max|min]",
    multiple=True,
    required=True,
    shell_complete=complete_columns,
    help="A column of `assay ls`; may be repeated.",
)
def fill(name: str, expressions: tuple[str, ...], metrics: tuple[str, ...]) -> int:
    project = project_here()
    catalog = _catalog(project)
    selections = [select_group(catalog, each) for each in expressions]
    columns = [_split_mode(each) for each in metrics]
    rows = {
        label: [_link(Link(value=value, where=where), catalog, row=label) for value, _ in columns]
        for label, where in zip(label_rows(expressions, selections), expressions, strict=True)
    }
    if name not in table_names(project):
        table_edits.create(project, name)
    table = _read(project, name)
    changes = []
    for label, links in rows.items():
        table, row = _with_row(project, name, table, label, by_key=False)
        for (value, mode), link in zip(columns, links, strict=True):
            table, column = _with_column(project, name, table, value, by_key=False)
            changes.append(TableChange(what="cell", row=row, column=column, new=link))
            if mode:
                changes.append(TableChange(what="column", column=column, new={"best": mode}))
    table = table_edits.change(project, name, *changes)
    echo("\n".join(_lines(follow_links(table, catalog))))
    return 0


@command.command(
    name="check",
    help="""Say which numbers of a LaTeX document are no longer those of the records. A comment
    says which cell a number is of: `assay table show NAME --as latex` writes one before each
    row, and a line of text can end in `% assay: TABLE/ROW/COLUMN`. Exits with 1 when a number
    differs.""",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def check(files: tuple[str, ...]) -> int:
    from assay.report.document_check import check_document

    project = project_here()
    catalog = _catalog(project)
    texts = {file: _read_text(file) for file in files}
    total, wrong = 0, 0
    for file, text in texts.items():
        marked, found = check_document(text, project, catalog)
        total += marked
        wrong += len(found)
        for each in found:
            echo(visible(f"{file}:{each.line}: {each.place} {each.now}"))
    if not total:
        raise InputError(
            f"No number in {', '.join(files)} says which cell it is of.",
            fix="`assay table show NAME -o FILE.tex` writes that; or end a line with"
            " `% assay: TABLE/ROW/COLUMN`",
        )
    are = "is" if total == 1 else "are"
    if wrong:
        echo(f"{wrong} of {count(total, 'number')} {are} not what the records say", err=True)
        return 1
    echo(f"{count(total, 'number')} {are} what the records say")
    return 0


@command.command(name="rm", help="Remove a table and its history.")
@click.argument("name", shell_complete=complete_tables)
def rm(name: str) -> int:
    table_edits.remove(project_here(), name)
    echo(f"removed: {name}")
    return 0


def _catalog(project: Project) -> Catalog:
    catalog = Catalog(project)
    catalog.synchronize()
    return catalog


def _read_text(file: str) -> str:
    try:
        return read_bytes(file, MAX_BYTES, follow=True).decode("utf-8-sig")
    except FileNotFoundError as error:
        path = Path(file)
        fix = choose(path.name, [each.name for each in path.parent.glob(f"*{path.suffix}")])
        fix = fix or "give its path from this folder"
        raise InputError("There is no such file.", where=file, fix=fix) from error
    except OSError as error:
        what = f"The file cannot be read: {error.strerror or error}."
        raise InputError(what, where=file) from error
    except UnicodeDecodeError as error:
        what = f"The file is no text of UTF-8: {error.reason} at byte {error.start}."
        raise InputError(what, where=file, fix="save it as UTF-8") from error


def _link(link: Link, catalog: Catalog, *, row: str = "") -> Link:
    """Return a link that remembers what it shows now; InputError for one that shows nothing."""
    if link.where:
        catalog.ids(Asked(where=link.where))  # a mistake in it is told here, not shown in the cell
    catalog.known_column(link.value, where=row)
    now = cell_behind(link, catalog)
    if now.state == "gone":
        what = f"{link.value} of {row}" if row else "That"
        fix = f"`assay ls --columns id,{link.value}` shows which runs have one"
        raise InputError(f"{what} leads to no value: {now.value or 'no such run has one'}", fix=fix)
    return replace(link, seen=seen_now(now))


def _split_mode(text: str) -> tuple[str, str]:
    name, _, mode = text.rpartition(":")
    return (name, mode) if mode in ("max", "min") else (text, "")


def _read(project: Project, name: str) -> ResultTable:
    try:
        return read_table(project, name)
    except FileNotFoundError:
        names = table_names(project)
        fix = did_you_mean(name, names) or (
            f"there are {', '.join(names)}" if names else "there is none yet"
        )
        raise InputError(f"There is no table `{name}`.", fix=fix) from None


def _with_row(
    project: Project, name: str, table: ResultTable, text: str, *, by_key: bool
) -> tuple[ResultTable, str]:
    """Return the table with a row of this first text, and its key.

    `by_key`: where there is none, the row of this key is meant.
    """
    first = table.columns[0].key if table.columns else ""
    named = [row.key for row in table.rows if first and row.cells.get(first) == text]
    named += [row.key for row in table.rows if by_key and row.key == text]
    if named:
        return table, named[0]
    if not first:
        table = table_edits.change(project, name, TableChange(what="add-column", new="name"))
        first = table.columns[0].key
    table = table_edits.change(project, name, TableChange(what="add-row"))
    key = table.rows[-1].key
    return table_edits.change(
        project, name, TableChange(what="cell", row=key, column=first, new=text)
    ), key


def _with_column(
    project: Project, name: str, table: ResultTable, title: str, *, by_key: bool
) -> tuple[ResultTable, str]:
    """Return the table with a column of this title, and its key.

    `by_key`: where there is none, the column of this key is meant, and the column of the rows'
    names may be it.
    """
    columns = table.columns if by_key else table.columns[1:]
    named = [column.key for column in columns if column.title == title]
    named += [column.key for column in columns if by_key and column.key == title]
    if named:
        return table, named[0]
    table = table_edits.change(project, name, TableChange(what="add-column", new=title))
    return table, table.columns[-1].key


def _is_numeric(rows: Sequence[ShownRow], column: int) -> bool:
    """Return whether a column holds numbers alone, which stand on the right."""
    values = [row.cells[column].value for row in rows]
    return bool(values) and all(isinstance(value, float | None) for value in values)


def _lines(found: ShownTable) -> list[str]:
    color = use_color(sys.stdout)
    head = [visible(column.title) for column in found.table.columns]
    body = [[_text(cell) for cell in row.cells] for row in found.rows]
    if not head:
        return ["The table is empty."]
    numeric = [i for i in range(len(head)) if _is_numeric(found.rows, i)]
    lines = align_rows([head, *body], to_right=numeric)
    notes = [line for text in found.legend("*", "_") for line in _wrap(text)]
    return [paint(lines[0], "dim", on=color), *lines[1:], *(["", *notes] if notes else [])]


def _wrap(text: str) -> list[str]:
    """Return a sentence as lines that fit the terminal."""
    limit = width(sys.stdout)
    return [visible(text)] if limit is None else textwrap.wrap(visible(text), limit)


def _text(cell: ShownCell) -> str:
    marks = (cell.is_best, "*"), (cell.is_second, "_"), (cell.is_near, "†")
    mark = "".join(sign for is_marked, sign in marks if is_marked)
    text = visible(cell.text or "-")
    if cell.state == "stale":
        return f"{text}{mark} (was {visible(cell.seen)})"
    if cell.state == "gone":
        return f"gone (was {visible(cell.seen)})" if cell.seen else "gone"
    return f"{text}{mark}"


def _plain(value: Any) -> str:
    return "nothing" if value is None else value if isinstance(value, str) else dumps(value)
