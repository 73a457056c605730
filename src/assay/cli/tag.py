"""`assay tag`."""

from __future__ import annotations

import click

from assay.cli.one_run import LAST, run_and_more
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.core.terminal import visible
from assay.query.find import find_run
from assay.record import edits


@click.command(
    name="tag",
    help="Give a run another title; RUN left out: the last run. What it was before is kept.",
)
@run_and_more("TITLE")
def command(arguments: tuple[str, ...]) -> int:
    match arguments:
        case (title,):
            run = LAST
            _refuse_run(title)
        case (run, title):
            pass
        case ():
            raise InputError("`assay tag` needs a title.", fix="assay tag baseline")
        case (run, *words):
            fix = f'assay tag {run} "{" ".join(words)}"'
            raise InputError("A title of several words stands in quotes.", fix=fix)
    view = find_run(run)
    edits.retag(view.folder, title, old=view.tag)
    echo(f"{view.id}: {visible(view.tag) or '-'} -> {visible(title) or '-'}")
    return 0


def _refuse_run(title: str) -> None:
    """Raise InputError for the address of a run in the place of a title."""
    try:
        view = find_run(title)
    except InputError:
        return
    if view.tag != title:
        raise InputError(
            f"`assay tag` needs a title: `{title}` is the run {view.id}.",
            fix=f"assay tag {title} TITLE",
        )
