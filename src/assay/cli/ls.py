"""`assay ls`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from assay.cli.completion import complete_columns, complete_expression
from assay.cli.terminal import STATUS_STYLES, echo, paint, use_color, width
from assay.core.errors import InputError
from assay.core.terminal import cell_count, visible
from assay.query.catalog import NEWEST_FIRST, Asked, Catalog, open_catalog
from assay.query.columns import COLUMNS, DEFAULT_COLUMNS
from assay.query.groups import BY_CONFIG
from assay.query.table import (
    RunTable,
    default_columns,
    differing_keys,
    make_group_table,
    make_table,
)
from assay.store import known_projects
from assay.store.layout import Project

_LESS_NEEDED = ("tag", "best", "project", "kind", "age", "duration")
"""Columns that nobody asked for by name, the first one to be left out last."""
_AT_TERMINAL = 500
"""Runs that are printed to a terminal at most, unless asked for; to a pipe all are."""


@click.command(
    name="ls",
    help="""List the runs of this project, the newest first; with EXPR those that it is true for:

    assay ls 'valid/loss < 0.3 and model.hidden == 64 and age < 7d'""",
)
@click.argument("expr", nargs=-1, shell_complete=complete_expression)
@click.option(
    "--grep",
    metavar="WORDS",
    default="",
    help="Only runs with these words in tag, notes or README.",
)
@click.option(
    "--sort",
    metavar="K",
    default="",
    shell_complete=complete_columns,
    help="Sort by a column; -K for the largest first.",
)
@click.option(
    "--columns",
    metavar="K,..",
    shell_complete=complete_columns,
    default="",
    help="Columns to show: valid/acc.max, optimizer.lr, note, ...",
)
@click.option("--diff", is_flag=True, help="A column for each key of the configs that differs.")
@click.option(
    "--group",
    is_flag=True,
    help="One line for runs that differ in the seed alone: mean ± deviation.",
)
@click.option(
    "--except",
    "ignored",
    metavar="K,..",
    default="",
    shell_complete=complete_columns,
    help="With --group: runs may differ in these keys, too: '*.fold'.",
)
@click.option("-n", "--limit", metavar="N", type=click.IntRange(min=1), help="Only the first N.")
@click.option("--tests", is_flag=True, help="Test runs too.")
@click.option("--archived", is_flag=True, help="Archived runs too.")
@click.option("--all-projects", is_flag=True, help="The runs of all projects that you have.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: one object a run.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV.")
def command(
    expr: tuple[str, ...],
    columns: str,
    sort: str,
    diff: bool,
    group: bool,
    ignored: str,
    limit: int | None,
    all_projects: bool,
    as_json: bool,
    as_csv: bool,
    **given: Any,
) -> int:
    is_text = not (as_json or as_csv or group)
    is_cut = is_text and limit is None and width(sys.stdout) is not None
    if is_cut:
        limit = _AT_TERMINAL
    if as_json and as_csv:
        raise InputError("--json and --csv are two different things.", fix="give one of them")
    ignored_keys = [key.strip() for key in ignored.split(",") if key.strip()]
    if ignored_keys and not group:
        raise InputError("`--except` says what a group may differ in.", fix="give --group, too")
    homes = known_projects.all_projects() if all_projects else known_projects.projects_here()
    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    asked = Asked(
        where=" ".join(expr),
        sort=(sort,) if sort else (),
        columns=names,
        group=(BY_CONFIG,) if group else (),
        ignored=ignored_keys,
        limit=limit,
        **given,
    )
    asked = replace(asked, sort=asked.sort or (NEWEST_FIRST,))
    catalog = open_catalog(homes, texts=bool(asked.grep))
    _warn(catalog.describe_shadows(asked))
    for root in known_projects.lost_roots() if all_projects else ():
        echo(f"lost: {visible(str(root))} is not there any more; `assay gc` forgets it", err=True)
    if asked.group:
        form = "json" if as_json else "csv" if as_csv else "text"
        return _print_groups(catalog, asked, homes, form, diff=diff)
    differing = differing_keys(catalog.select(asked)) if diff else []
    names = tuple(asked.columns)
    if diff:
        names = ("tag", "id", *differing, *(names or ["best"]))
    names = names or _default_columns(asked.tests, all_projects)
    table = make_table(catalog, replace(asked, columns=names))
    if as_json:
        echo(table.to_json())
    elif as_csv:
        echo(table.to_csv(), end="")
    elif len(table):
        _print_fitting(table, differing or ([] if columns else _LESS_NEEDED), diff=diff)
        if is_cut and len(table) == limit:
            echo(f"... a terminal gets {limit} runs at most; -n N shows another number", err=True)
    else:
        echo(_none(homes, asked))
    return 0


def _warn(sentences: Sequence[str]) -> None:
    word = paint("note:", "yellow", on=use_color(sys.stderr))
    for sentence in sentences:
        echo(f"{word} {visible(sentence)}", err=True)


def _print_fitting(table: RunTable, less_needed: Sequence[str], *, diff: bool) -> None:
    """Print a table; columns that are less needed are left out where it is too narrow."""
    table, left_out = _fitting(table, less_needed)
    _print(table)
    if diff and left_out:
        echo(
            f"... and {len(left_out)} more keys that differ: --csv and --json have them all",
            err=True,
        )
    elif left_out:
        echo(f"... too narrow for: {', '.join(left_out)}", err=True)


def _default_columns(tests: bool, everywhere: bool) -> tuple[str, ...]:
    more = [*(["kind"] if tests else []), *(["project"] if everywhere else [])]
    return (*DEFAULT_COLUMNS[:2], *more, *DEFAULT_COLUMNS[2:])


def _fitting(table: RunTable, dropped: Sequence[str]) -> tuple[RunTable, list[str]]:
    """Return the table with as many columns as the terminal has room for, and the columns left out.

    Of `dropped`, the last is left out first. A number that is cut reads as another one, so none is.
    """
    limit = width(sys.stdout)
    names = {column.name for column in table.columns}
    kept = [name for name in dropped if name in names]
    left_out = []
    while limit is not None and kept and max(map(cell_count, table.text(width=limit))) > limit:
        last = kept.pop()
        left_out.append(last)
        table = table.without_column(last)
    return table, left_out


def _print_groups(
    catalog: Catalog, asked: Asked, homes: Sequence[Project], form: str, *, diff: bool
) -> int:
    if diff:
        selection = catalog.select(asked)
        differing = differing_keys(selection, without=("seed", *asked.ignored))
        names = (*differing, *(asked.columns or default_columns(selection)))
        asked = replace(asked, columns=names)
    table = make_group_table(catalog, asked)
    if form == "json":
        echo(table.to_json())
    elif form == "csv":
        echo(table.to_csv(), end="")
    elif len(table):
        head, *lines = table.text(width=width(sys.stdout))
        echo("\n".join([paint(head, "dim", on=use_color(sys.stdout)), *lines]))
        _warn(table.find_doubts())
    else:
        echo(_none(homes, asked))
    return 0


def _print(table: RunTable) -> None:
    color = use_color(sys.stdout)
    at = table.columns.index(COLUMNS["status"]) if COLUMNS["status"] in table.columns else -1
    out = []
    head, *lines = table.text(width=width(sys.stdout))
    out.append(paint(head, "dim", on=color))
    if color and at == 0:
        statuses = table.lists[0]
        lines = [
            paint(status, STATUS_STYLES.get(status, ""), on=True) + line[len(status) :]
            for status, line in zip(statuses, lines, strict=True)
        ]
    notes = [*table.find_unsaved().items(), *table.find_changed().items()]
    out += [*lines, *(f"{run_id}: {visible(note)}" for run_id, note in notes)]
    echo("\n".join(out))


def _none(homes: Sequence[Project], asked: Asked) -> str:
    below = known_projects.suggest_below(homes[0].root if homes else Path.cwd())
    if not homes:
        return (
            f"There is no project here, so there are no runs. {below or '`assay init` makes one'}."
        )
    if asked.where or asked.grep:
        return "No run is like that."
    tests = "." if asked.tests else "; test runs are shown with --tests."
    return f"There are no runs yet. {below or '`assay run CONFIG` makes one'}{tests}"
