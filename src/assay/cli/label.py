"""`assay label`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from assay.cli.one_run import LAST, run_and_more
from assay.cli.terminal import echo
from assay.core.errors import InputError, did_you_mean
from assay.core.terminal import visible
from assay.query.find import find_run
from assay.query.run import RunView
from assay.record import edits


@click.command(
    name="label",
    help="Put labels on a run, or take them off; without LABEL show those that it has. Without"
    " RUN it is the last run that is shown, or that loses the label.",
)
@run_and_more("[LABEL]...")
@click.option("-d", "--delete", is_flag=True, help="Take these labels off.")
def command(arguments: tuple[str, ...], delete: bool) -> int:
    view, labels = _run_and_labels(arguments, delete=delete)
    if delete:
        if not labels:
            raise InputError(
                "Which labels?", fix=f"assay label {view.id} -d LABEL; it has {_list_labels(view)}"
            )
        for label in labels:
            if label not in view.labels:
                fix = did_you_mean(label, view.labels) or f"it has {_list_labels(view)}"
                raise InputError(f"The run {view.id} has no label `{label}`.", fix=fix)
        edits.remove_labels(view.folder, list(labels))
    elif labels:
        edits.add_labels(view.folder, list(labels))
    after = RunView(view.folder)
    echo(f"{after.id} {visible(after.tag)}".rstrip() + f": {visible(_list_labels(after))}")
    return 0


def _run_and_labels(arguments: Sequence[str], *, delete: bool) -> tuple[RunView, list[str]]:
    """Return the run and the labels: one argument is a run, with --delete a label."""
    if delete and len(arguments) == 1:
        return find_run(LAST), [*arguments]
    run, *labels = arguments or [LAST]
    try:
        return find_run(run), labels
    except InputError as error:
        if labels:
            raise
        fix = f"assay label last {run} puts that label on the last run; {error.fix}"
        raise InputError(error.what, where=error.where, fix=fix) from None


def _list_labels(view: RunView) -> str:
    return ", ".join(view.labels) or "no labels"
