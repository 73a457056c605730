"""`assay unpack`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import click

from assay.cli.completion import complete_files
from assay.cli.terminal import echo
from assay.core.formatting import count, size
from assay.store.known_projects import remember
from assay.store.layout import open_project
from assay.store.packing import check, unpack_run


@click.command(
    name="unpack",
    help="Take a packed run into this project. Every file is compared with its digest first.",
)
@click.argument("file", shell_complete=complete_files)
@click.option("--check", "only_check", is_flag=True, help="Only compare; write nothing.")
def command(file: str, only_check: bool) -> int:
    if only_check:
        found = check(Path(file))
        echo(f"as packed: {found.id}  {count(len(found.files), 'file')}, {size(found.size_bytes)}")
        return 0
    project = open_project(Path.cwd())
    is_new = not project.assay_dir.is_dir()
    folder = unpack_run(Path(file), project)
    if is_new:
        echo(f"assay: {project.root} is a project now (it has a folder .assay/).", err=True)
    with contextlib.suppress(OSError):  # then it is only not listed by --all-projects
        remember(project.root)
    echo(f"unpacked: {os.fspath(folder.path)}")
    echo(f"resume it: assay resume {folder.id}")
    echo(f"its code alone: assay restore {folder.id} --to DIR")
    return 0
