"""`assay note`."""

from __future__ import annotations

import click

from assay.cli.completion import complete_runs
from assay.cli.terminal import echo
from assay.cli.text import wrapped
from assay.core.terminal import visible
from assay.query.find import find_run
from assay.query.formatting import moment
from assay.record import edits


@click.command(
    name="note",
    help="Add a note to a run; without TEXT show those that it has. None is ever replaced.",
)
@click.argument("run", shell_complete=complete_runs)
@click.argument("text", nargs=-1)
def command(run: str, text: tuple[str, ...]) -> int:
    view = find_run(run)
    if text:
        edits.note(view.folder, " ".join(text))
        echo(f"noted: {view.id} {visible(view.tag)}".rstrip())
        return 0
    for note in view.notes:
        echo(f"{moment(note.at_ns)}  {visible(note.who)}".rstrip())
        echo("\n".join(wrapped(str(note.new))))
    if not view.notes:
        echo(f"The run {view.id} has no notes.", err=True)
    return 0
