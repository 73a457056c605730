"""`assay report`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from assay.cli.one_run import run_argument
from assay.cli.terminal import echo
from assay.query.find import find_run
from assay.store.known_projects import project_here


@click.command(
    name="report",
    help="""Write a report of a run, or of all runs that EXPR is true for: purpose, result, curves,
    data, config, cost, code, environment, verdicts, and how to run it again.

    \b
    assay report last
    assay report 'tag = base' -o base.html

    It is a folder with report.html, which needs no other file, and report.md with its pictures; or
    the one file of -o. With --card it is a model card in the form of the Hugging Face Hub.""",
)
@run_argument("[RUN|EXPR]")
@click.option(
    "-o",
    "--to",
    "place",
    metavar="DIR|FILE",
    type=click.Path(path_type=Path),
    help="A folder, a .html or a .md. Left out: RUN-report.",
)
@click.option("--card", is_flag=True, help="A model card instead. Left out -o: RUN-card.md.")
@click.option("--force", is_flag=True, help="Move away what is there.")
def command(run: str, place: Path | None, card: bool, force: bool) -> int:
    from assay.report.document import write_text
    from assay.report.model_card import make_card
    from assay.report.run_report import make_report

    if card:
        view = find_run(run)
        target = place or Path(f"{view.id}-card.md")
        moved = write_text(target.absolute(), make_card(view, project_here()), force=force)
    else:
        report = make_report(run)
        target = place or Path(f"{report.name}-report")
        moved = report.write(target.absolute(), force=force)
    if moved is not None:
        echo(f"moved away: {os.path.relpath(moved)}", err=True)
    echo(f"written: {os.path.relpath(target)}")
    return 0
