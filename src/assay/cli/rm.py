"""`assay rm`."""

from __future__ import annotations

import click

from assay.cli.completion import complete_runs
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.core.ids import id_of_folder
from assay.core.terminal import visible
from assay.query.find import select_runs
from assay.store.known_projects import project_here
from assay.store.layout import RunFolder
from assay.store.trash import bring_back, list_removed, remove_run


@click.command(
    name="rm", help="Remove runs. Their files stay until `assay gc`; --undo brings them back."
)
@click.argument(
    "runs", metavar="RUN|EXPR...", nargs=-1, required=True, shell_complete=complete_runs
)
@click.option("--undo", is_flag=True, help="Bring back runs that were removed, by id.")
def command(runs: tuple[str, ...], undo: bool) -> int:
    if undo:
        for folder in [_find_removed(run) for run in runs]:
            bring_back(folder)
            echo(f"brought back: {folder.id}")
        return 0
    # All are found before the first is removed: `last` must mean the same for each of them.
    for view in select_runs(runs):
        tag = visible(view.tag)  # before its folder is somewhere else
        remove_run(view.folder)
        echo(f"removed: {view.id} {tag}".rstrip() + f"   (assay rm --undo {view.id})")
    return 0


def _find_removed(address: str) -> RunFolder:
    project = project_here()
    gone = list_removed(project)
    found = [
        folder for folder in gone if folder.id.startswith(address) or address == folder.path.name
    ]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(id_of_folder(folder.path.name) or "" for folder in found or gone)
    what = (
        f"`{address}` is the beginning of several ids."
        if found
        else f"No removed run is called `{address}`."
    )
    raise InputError(what, where=str(project.runs_dir), fix=f"there are {ids}" if ids else "")
