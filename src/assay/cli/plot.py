"""`assay plot`."""

from __future__ import annotations

from pathlib import Path

import click

from assay.cli.completion import complete_metrics, complete_runs
from assay.cli.terminal import echo
from assay.core.formatting import count
from assay.query.find import select_runs


@click.command(
    name="plot",
    help="""Draw curves into a file, one panel for each metric. Lines are labelled by the config
    keys that differ; runs that differ in nothing but their seed are one line, their mean, with a
    band of one standard deviation:

    \b
    assay plot last last-1 last-2 -m loss -o fig.pdf
    assay plot 'tag = sweep' -m valid/acc -o fig.pdf""",
)
@click.argument(
    "runs", metavar="RUN|EXPR...", nargs=-1, required=True, shell_complete=complete_runs
)
@click.option(
    "-m",
    "--metric",
    metavar="NAME",
    multiple=True,
    required=True,
    shell_complete=complete_metrics,
    help="What is drawn; may be repeated. `loss` is train/loss and valid/loss.",
)
@click.option(
    "-o", "--to", metavar="FILE", required=True, help="The file to write: .pdf, .png or .svg."
)
@click.option("--title", default="", help="What stands above.")
@click.option("--log", is_flag=True, help="A logarithmic axis of values.")
def command(runs: tuple[str, ...], metric: tuple[str, ...], to: str, title: str, log: bool) -> int:
    from assay.report.figure import draw, lines

    found = lines(select_runs(runs), metric)
    draw(found, Path(to), title=title, log=log)
    for line in found:
        echo(f"{line.label}  {line.metric}  {count(len(line.xs), 'point')}")
    echo(f"written: {to}")
    return 0
