"""`assay label`."""

from __future__ import annotations

import click

from assay.cli.one_run import run_argument
from assay.cli.terminal import echo
from assay.core.errors import InputError, did_you_mean
from assay.core.terminal import visible
from assay.query.find import find_run
from assay.query.run import RunView
from assay.record import edits


@click.command(
    name="label",
    help="Put labels on a run, or take them off; without LABEL show those that it has.",
)
@run_argument()
@click.argument("labels", metavar="[LABEL]...", nargs=-1)
@click.option("-d", "--delete", is_flag=True, help="Take these labels off.")
def command(run: str, labels: tuple[str, ...], delete: bool) -> int:
    view = find_run(run)
    if delete:
        if not labels:
            raise InputError(
                "Which labels?", fix=f"assay label {view.id} -d LABEL; it has {_listed(view)}"
            )
        for label in labels:
            if label not in view.labels:
                fix = did_you_mean(label, view.labels) or f"it has {_listed(view)}"
                raise InputError(f"The run {view.id} has no label `{label}`.", fix=fix)
        edits.remove_labels(view.folder, list(labels))
    elif labels:
        edits.add_labels(view.folder, [label for label in labels if label not in view.labels])
    after = RunView(view.folder)
    echo(f"{after.id} {visible(after.tag)}".rstrip() + f": {visible(_listed(after))}")
    return 0


def _listed(view: RunView) -> str:
    return ", ".join(view.labels) or "no labels"
