"""`assay archive`."""

from __future__ import annotations

import click

from assay.cli.completion import complete_runs
from assay.cli.terminal import echo
from assay.core.terminal import visible
from assay.query.find import select_runs
from assay.query.run_row import ARCHIVED
from assay.record import edits


@click.command(
    name="archive",
    help="Leave runs out of lists; nothing of them is deleted. `assay ls --archived` has them.",
)
@click.argument(
    "runs", metavar="RUN|EXPR...", nargs=-1, required=True, shell_complete=complete_runs
)
@click.option("--undo", is_flag=True, help="Show them again.")
def command(runs: tuple[str, ...], undo: bool) -> int:
    views = select_runs(runs)
    for view in views:
        if undo and ARCHIVED in view.labels:
            edits.remove_labels(view.folder, [ARCHIVED])
        elif not undo and ARCHIVED not in view.labels:
            edits.add_labels(view.folder, [ARCHIVED])
        echo(f"{'shown again' if undo else 'archived'}: {view.id} {visible(view.tag)}".rstrip())
    return 0
