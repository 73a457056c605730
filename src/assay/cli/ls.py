"""`assay ls`."""

from __future__ import annotations

import sys

import click

from assay.cli.terminal import STATUS_STYLES, paint, use_color, width
from assay.core.errors import InputError
from assay.query import place
from assay.query.table import COLUMNS, DEFAULT_COLUMNS, DEFAULT_SORT, Table, list_runs
from assay.store.layout import Project


@click.command(name="ls", help="List the runs of this project, the newest first.")
@click.option("--sort", metavar="K", default=DEFAULT_SORT, help="Sort by a column; -K for the largest first.")
@click.option("--columns", metavar="K,..", default="", help="Columns to show; any metric, as in valid/acc.max.")
@click.option("-n", "--limit", metavar="N", type=click.IntRange(min=1), help="Only the first N.")
@click.option("--tests", is_flag=True, help="Test runs too.")
@click.option("--all-projects", is_flag=True, help="The runs of all projects that you have.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: one object a run.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV.")
def command(
    sort: str, columns: str, limit: int | None, tests: bool, all_projects: bool, as_json: bool, as_csv: bool
) -> int:
    if as_json and as_csv:
        raise InputError("--json and --csv are two different things.", fix="give one of them")
    names = [name.strip() for name in columns.split(",") if name.strip()] or _default_columns(tests, all_projects)
    homes = place.all_projects() if all_projects else place.projects_here()
    table = list_runs(homes, tests=tests, sort=sort, columns=names, limit=limit)
    if as_json:
        click.echo(table.to_json())
    elif as_csv:
        click.echo(table.to_csv(), nl=False)
    elif table.rows:
        _print(table)
    else:
        click.echo(_none(homes, tests))
    return 0


def _default_columns(tests: bool, everywhere: bool) -> list[str]:
    more = [*(["kind"] if tests else []), *(["project"] if everywhere else [])]
    return [*DEFAULT_COLUMNS[:2], *more, *DEFAULT_COLUMNS[2:]]


def _print(table: Table) -> None:
    color = use_color(sys.stdout)
    at = table.columns.index(COLUMNS["status"]) if COLUMNS["status"] in table.columns else -1
    out = []
    for line, row in table.lines(width=width(sys.stdout)):
        if row is None:
            line = paint(line, "dim", on=color)
        elif color and at == 0:
            line = paint(row.status, STATUS_STYLES.get(row.status, ""), on=True) + line[len(row.status) :]
        out.append(line)
    click.echo("\n".join(out))


def _none(homes: list[Project], tests: bool) -> str:
    if not homes:
        return "There is no project here, so there are no runs. `assay init` makes one."
    return (
        f"There are no runs yet. `assay run CONFIG` makes one{'.' if tests else '; test runs are shown with --tests.'}"
    )
