"""`assay edit`."""

from __future__ import annotations

import click

from assay.cli.completion import complete_runs
from assay.cli.one_run import LAST
from assay.cli.terminal import echo
from assay.cli.text import wrap
from assay.core.errors import InputError, did_you_mean
from assay.core.formatting import moment
from assay.core.terminal import visible
from assay.query.find import select_runs
from assay.query.run import RunView
from assay.query.run_row import ARCHIVED
from assay.record import edits


@click.command(
    name="edit",
    help="Add a note to runs, put labels on them or take them off, give one another title, or leave"
    " them out of lists. Without an option: the notes and labels. Nothing of a run is deleted, and"
    " no note is replaced. RUN left out: the last run.",
)
@click.argument("runs", metavar="[RUN|EXPR]...", nargs=-1, shell_complete=complete_runs)
@click.option("--note", metavar="TEXT", help="Add this note.")
@click.option("--label", "labels", metavar="NAME", multiple=True, help="Put this label on.")
@click.option("--unlabel", "unwanted", metavar="NAME", multiple=True, help="Take this label off.")
@click.option("--tag", metavar="TITLE", help="Give it this title; what it was before is kept.")
@click.option(
    "--archive/--unarchive",
    "archive",
    default=None,
    help="Leave it out of lists, or show it again; `assay ls --archived` has it.",
)
def command(
    runs: tuple[str, ...],
    note: str | None,
    labels: tuple[str, ...],
    unwanted: tuple[str, ...],
    tag: str | None,
    archive: bool | None,
) -> int:
    views = select_runs(runs or (LAST,))
    if tag is not None and len(views) > 1:
        raise InputError(f"A title is for one run, not {len(views)}.", fix="name one run")
    for view in views:
        _refuse_unknown_labels(view, unwanted)
    for view in views:
        named = f"{view.id} {visible(view.tag)}".rstrip()
        if note:
            edits.note(view.folder, note)
            echo(f"noted: {named}")
        if labels or unwanted:
            edits.add_labels(view.folder, list(labels))
            edits.remove_labels(view.folder, list(unwanted))
            echo(f"{named}: {_list_labels(RunView(view.folder))}")
        if tag is not None:
            edits.retag(view.folder, tag, old=view.tag)
            echo(f"{view.id}: {visible(view.tag) or '-'} -> {visible(tag) or '-'}")
        if archive is not None:
            _archive(view, archive)
            echo(f"{'archived' if archive else 'shown again'}: {named}")
        if not (note or labels or unwanted) and tag is None and archive is None:
            _show(view)
    return 0


def _archive(view: RunView, archive: bool) -> None:
    if archive and ARCHIVED not in view.labels:
        edits.add_labels(view.folder, [ARCHIVED])
    elif not archive and ARCHIVED in view.labels:
        edits.remove_labels(view.folder, [ARCHIVED])


def _refuse_unknown_labels(view: RunView, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in view.labels:
            fix = did_you_mean(name, view.labels) or f"it has {_list_labels(view)}"
            raise InputError(f"The run {view.id} has no label `{name}`.", fix=fix)


def _show(view: RunView) -> None:
    """Print the labels and notes of a run."""
    echo(f"{view.id} {visible(view.tag)}".rstrip() + f": {_list_labels(view)}")
    for note in view.notes:
        echo(f"{moment(note.at_ns)}  {visible(note.who)}".rstrip())
        echo("\n".join(wrap(str(note.new))))


def _list_labels(view: RunView) -> str:
    return visible(", ".join(view.labels) or "no labels")
