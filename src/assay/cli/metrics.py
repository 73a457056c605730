"""`assay metrics`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import click

from assay.cli.completion import complete_metrics
from assay.cli.log import MetricLines, echo_new, warn_of_damage
from assay.cli.one_run import run_argument
from assay.cli.terminal import echo, paint, use_color
from assay.core.errors import InputError, choose
from assay.core.facts import COSTS
from assay.core.formatting import number
from assay.core.terminal import visible
from assay.core.text_table import align_rows
from assay.query.find import find_run
from assay.query.logged_rows import LoggedRow, logged_rows, merge_steps, rows_csv
from assay.query.run import RunView


@click.command(
    name="metrics",
    help="Print the metrics of a run as numbers: a row for each step. Those of speed, time and"
    " memory stand in --csv and --json, or are named with -m.",
)
@run_argument()
@click.option(
    "-m",
    "--metric",
    "names",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_metrics,
    help="Only this metric; may be repeated.",
)
@click.option("-n", "--lines", metavar="N", type=click.IntRange(min=0), help="Only the last N.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV: a column for each metric.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("-f", "--follow", is_flag=True, help="With --json: follow the run until it ends.")
def command(
    run: str, names: tuple[str, ...], lines: int | None, as_csv: bool, as_json: bool, follow: bool
) -> int:
    _refuse(as_csv=as_csv, as_json=as_json, follow=follow)
    view = find_run(run)
    _refuse_unknown(view, names)
    if as_json:
        echo_new(view, MetricLines(view, names, follow=follow), lines, follow=follow)
        return 0
    rows = _only(merge_steps(logged_rows(view)), names)
    if not as_csv and not names:
        rows = _without_costs(rows)
    rows = rows if lines is None else rows[len(rows) - min(lines, len(rows)) :]
    if as_csv:
        echo(rows_csv(rows), end="")
    elif rows:
        echo("\n".join(_table(rows, color=use_color(sys.stdout))))
    else:
        echo(f"No metrics so far. The run {view.id} is {view.status_text}", err=True)
    warn_of_damage(view)
    return 0


def _refuse(*, as_csv: bool, as_json: bool, follow: bool) -> None:
    if as_csv and as_json:
        raise InputError("--csv and --json are two formats.", fix="leave out one of the two")
    if follow and not as_json:
        raise InputError(
            "Only --json can be followed: a table has all its columns from the start.",
            fix="assay metrics RUN --json -f, or assay live RUN",
        )


def _refuse_unknown(view: RunView, names: Sequence[str]) -> None:
    for name in names:
        if name not in view.metrics and view.status != "running":
            fix = choose(name, view.metrics, "it has")
            raise InputError(f"The run {view.id} has no metric `{name}`.", fix=fix)


def _only(rows: Sequence[LoggedRow], names: Sequence[str]) -> list[LoggedRow]:
    """Return the rows with the named metrics alone; rows without any of them are left out."""
    if not names:
        return list(rows)
    wanted = [
        replace(row, values={name: row.values[name] for name in names if name in row.values})
        for row in rows
    ]
    return [row for row in wanted if row.values]


def _without_costs(rows: Sequence[LoggedRow]) -> list[LoggedRow]:
    """Return the rows without speed, time and memory, which fill a terminal."""
    kept = [
        replace(row, values={k: each for k, each in row.values.items() if not k.startswith(COSTS)})
        for row in rows
    ]
    return [row for row in kept if row.values]


def _table(rows: Sequence[LoggedRow], *, color: bool) -> list[str]:
    """Return aligned lines: step, time and a column for each metric."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    cells = [["step", "time", *map(visible, names)]]
    for row in rows:
        values = [number(row.values[name]) if name in row.values else "" for name in names]
        logged = datetime.fromtimestamp(row.time_ns / 1e9).astimezone()
        cells.append([str(row.step), f"{logged:%H:%M:%S}", *values])
    lines = align_rows(cells, to_right=range(len(names) + 2))
    return [paint(lines[0], "bold", on=color), *lines[1:]]
