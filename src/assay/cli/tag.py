"""`assay tag`."""

from __future__ import annotations

import click

from assay.cli.completion import complete_runs
from assay.cli.terminal import echo
from assay.core.terminal import visible
from assay.query.find import find_run
from assay.record import edits


@click.command(name="tag", help="Give a run another title. What it was before is kept.")
@click.argument("run", shell_complete=complete_runs)
@click.argument("title")
def command(run: str, title: str) -> int:
    view = find_run(run)
    edits.retag(view.folder, title, old=view.tag)
    echo(f"{view.id}: {visible(view.tag) or '-'} -> {visible(title) or '-'}")
    return 0
