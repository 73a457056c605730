"""`assay note`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from assay.cli.one_run import LAST, run_and_more
from assay.cli.terminal import echo
from assay.cli.text import wrap
from assay.core.errors import InputError
from assay.core.formatting import moment
from assay.core.terminal import visible
from assay.query.expression import ExpressionError
from assay.query.find import find_run, is_expression
from assay.record import edits


@click.command(
    name="note",
    help="""Add a note to a run; without TEXT show those that it has. None is ever replaced.

    \b
    assay note "the wide one learns slowly"
    assay note digits the wide one learns slowly

    RUN left out: the last run. Then TEXT is more than one word, in quotes.""",
)
@run_and_more("[TEXT]...")
def command(arguments: tuple[str, ...]) -> int:
    run, text = _run_and_text(arguments)
    view = find_run(run)
    if text:
        edits.note(view.folder, text)
        echo(f"noted: {view.id} {visible(view.tag)}".rstrip())
        return 0
    for note in view.notes:
        echo(f"{moment(note.at_ns)}  {visible(note.who)}".rstrip())
        echo("\n".join(wrap(str(note.new))))
    if not view.notes:
        echo(f"The run {view.id} has no notes.", err=True)
    return 0


def _run_and_text(arguments: Sequence[str]) -> tuple[str, str]:
    """Return the run and the note. One argument is a run, or a text of several words."""
    if not arguments:
        return LAST, ""
    first, *words = arguments
    if not words and " " in first and not _is_run(first):
        return LAST, first
    return first, " ".join(words)


def _is_run(text: str) -> bool:
    """Return True for an address of a run, and for an expression, whichever runs fulfil it."""
    try:
        find_run(text)
    except ExpressionError:
        return False
    except InputError:
        return is_expression(text)
    return True
