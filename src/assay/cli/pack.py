"""`assay pack`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from assay.cli.one_run import run_argument
from assay.cli.terminal import echo
from assay.core.formatting import count, size
from assay.query.diff import code_store
from assay.query.find import find_run
from assay.store.code_trees import PACK_SUFFIX
from assay.store.packing import left_out, pack_run


@click.command(
    name="pack",
    help="Put a run into one file, with its code and checkpoints: to keep elsewhere, or to give"
    " away.",
)
@run_argument()
@click.option(
    "-o", "--to", metavar="FILE", help=f"Left out: the name of its folder with {PACK_SUFFIX}, here."
)
def command(run: str, to: str | None) -> int:
    view = find_run(run)
    path = Path(to or f"{view.path.absolute().name}{PACK_SUFFIX}")
    if path.is_dir():
        path /= f"{view.path.absolute().name}{PACK_SUFFIX}"
    found = pack_run(view.folder, code_store(view), path)
    echo(
        f"packed: {os.fspath(path)}  {size(path.stat().st_size)}, {count(len(found.files), 'file')}"
    )
    if extra := left_out(view.folder):
        echo(f"left out, for a record has no such files: {', '.join(extra[:5])}", err=True)
    if not any(name.startswith("code/") for name in found.files):
        echo("Its code is not in it: none was kept, or it is not here.", err=True)
    return 0
