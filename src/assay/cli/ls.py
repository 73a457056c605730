"""`assay ls`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import click

from assay.cli.completion import complete_columns, complete_expression
from assay.cli.terminal import STATUS_STYLES, echo, paint, use_color, width
from assay.core.errors import InputError
from assay.core.terminal import cell_count, visible
from assay.query import project_lookup
from assay.query.columns import COLUMNS, DEFAULT_COLUMNS
from assay.query.found_runs import find_runs
from assay.query.listing import DEFAULT_SORT, list_runs
from assay.query.table import RunTable
from assay.store.layout import Project

_LESS_NEEDED = ("tag", "best", "project", "kind", "age", "duration")
"""Columns that nobody asked for by name, the first one to be left out last."""


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
    "--view", metavar="NAME", default="", help="As a view that was saved in `assay ui` shows them."
)
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
    view: str,
    group: bool,
    ignored: str,
    limit: int | None,
    all_projects: bool,
    as_json: bool,
    as_csv: bool,
    **asked: Any,
) -> int:
    if as_json and as_csv:
        raise InputError("--json and --csv are two different things.", fix="give one of them")
    ignored_keys = [key.strip() for key in ignored.split(",") if key.strip()]
    if ignored_keys and not (group or view):
        raise InputError("`--except` says what a group may differ in.", fix="give --group, too")
    homes = project_lookup.all_projects() if all_projects else project_lookup.projects_here()
    asked |= {
        "where": " ".join(expr),
        "lost": project_lookup.lost_projects() if all_projects else [],
    }
    names = [name.strip() for name in columns.split(",") if name.strip()]
    if view:
        names, sort, group = _of_view(view, homes, asked, names, sort, group)
    if group:
        form = "json" if as_json else "csv" if as_csv else "text"
        return _print_groups(
            homes, names, sort, limit, form, asked, diff=diff, ignored=ignored_keys
        )
    differing = _differing(homes, asked) if diff else []
    if diff:
        names = ["tag", "id", *differing, *(names or ["best"])]
    names = names or _default_columns(asked["tests"], all_projects)
    table = list_runs(homes, sort=sort or DEFAULT_SORT, columns=names, limit=limit, **asked)
    if as_json:
        echo(table.to_json())
    elif as_csv:
        echo(table.to_csv(), end="")
    elif table.rows:
        _print_fitting(table, differing or ([] if columns else _LESS_NEEDED), diff=diff)
    else:
        echo(_none(homes, asked))
    return 0


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


def _of_view(
    view: str,
    homes: Sequence[Project],
    asked: dict[str, Any],
    names: list[str],
    sort: str,
    group: bool,
) -> tuple[list[str], str, bool]:
    """Take from a saved view what the command does not say itself."""
    from assay.store.saved_views import read_view

    if not homes:
        raise InputError("There is no project here, so there is no view.")
    found = read_view(homes[0], view)
    asked["where"] = asked["where"] or found.where
    asked["archived"] |= found.archived
    asked["tests"] |= found.tests
    names = names or [column.name for column in found.columns]
    return names, sort or (found.sort[0] if found.sort else ""), group or bool(found.group)


def _default_columns(tests: bool, everywhere: bool) -> list[str]:
    more = [*(["kind"] if tests else []), *(["project"] if everywhere else [])]
    return [*DEFAULT_COLUMNS[:2], *more, *DEFAULT_COLUMNS[2:]]


def _differing(homes: list[Project], asked: dict[str, Any]) -> list[str]:
    from assay.query.differing_keys import differing_keys

    return differing_keys(find_runs(homes, **asked))


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
        table = replace(
            table, columns=tuple(column for column in table.columns if column.name != last)
        )
    return table, left_out


def _print_groups(
    homes: list[Project],
    names: list[str],
    sort: str,
    limit: int | None,
    form: str,
    asked: Any,
    *,
    diff: bool,
    ignored: Sequence[str],
) -> int:
    from assay.query.differing_keys import differing_keys
    from assay.query.seed_groups import GroupTable, default_columns, grouped

    found = find_runs(homes, **asked)
    if diff:
        left_out = ("seed", *ignored)
        differing = [
            key
            for key in differing_keys(found)
            if not any(fnmatchcase(key, one) for one in left_out)
        ]
        names = [*differing, *(names or default_columns(found))]
    table = grouped(found, names, sort, ignored=ignored)
    table = GroupTable(table.names, table.groups[:limit])
    if form == "json":
        echo(table.to_json())
    elif form == "csv":
        echo(table.to_csv(), end="")
    elif len(table):
        head, *lines = table.text()
        echo("\n".join([paint(head, "dim", on=use_color(sys.stdout)), *lines]))
    else:
        echo(_none(homes, asked))
    return 0


def _print(table: RunTable) -> None:
    color = use_color(sys.stdout)
    at = table.columns.index(COLUMNS["status"]) if COLUMNS["status"] in table.columns else -1
    out = []
    for line, row in table.lines(width=width(sys.stdout)):
        if row is None:
            line = paint(line, "dim", on=color)
        elif color and at == 0:
            line = (
                paint(row.status, STATUS_STYLES.get(row.status, ""), on=True)
                + line[len(row.status) :]
            )
        out.append(line)
    out += [f"{row.id}: {visible(row.written.reason)}" for row in table.rows if row.is_unsaved]
    echo("\n".join(out))


def _none(homes: Sequence[Project], asked: dict[str, Any]) -> str:
    if not homes:
        return "There is no project here, so there are no runs. `assay init` makes one."
    if asked["where"] or asked["grep"]:
        return "No run is like that."
    tests = "." if asked["tests"] else "; test runs are shown with --tests."
    return f"There are no runs yet. `assay run CONFIG` makes one{tests}"
