"""`assay gc`."""

from __future__ import annotations

import time

import click

from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.core.formatting import count, duration, size
from assay.core.terminal import visible
from assay.jobs.frozen_jobs import delete_ended_trees
from assay.store.index import reindex
from assay.store.known_projects import project_here, projects_here
from assay.store.trash import clean


@click.command(
    name="gc",
    help="Delete the files of removed runs and the frozen code of ended jobs, and forget projects"
    " whose folders are gone.",
)
@click.option(
    "--code", is_flag=True, help="Delete kept code too that no run of this project needs."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--index",
    is_flag=True,
    help="Only make the index anew from the records: it loses nothing.",
)
def command(code: bool, dry_run: bool, index: bool) -> int:
    if index:
        if code or dry_run:
            raise InputError("`--index` deletes nothing.", fix="assay gc --index")
        began = time.perf_counter()
        runs = reindex(project_here())
        echo(f"{count(runs, 'run')} indexed in {duration(time.perf_counter() - began)}")
        return 0
    here = projects_here()
    trees = delete_ended_trees(here[0], dry_run=dry_run) if here else []
    done = clean(here[0] if here else None, code=code, dry_run=dry_run)
    would = "would be " if dry_run else ""
    for name in done.runs:
        echo(f"{would}deleted: {name}")
    for root in done.projects:
        why = (
            "is no project any more (no .assay/ in it)"
            if root.is_dir()
            else "is not there any more"
        )
        echo(f"{would}forgotten: {visible(str(root))} {why}")
    if done.code_files:
        echo(f"{would}deleted: {count(done.code_files, 'file')} of kept code")
    if trees:
        echo(f"{would}deleted: frozen code of ended jobs, {count(len(trees), 'folder')}")
    if done.code_kept:
        echo(f"code is left alone: {visible(done.code_kept)}", err=True)
    if done.runs or done.code_files:
        echo(f"{size(done.size_bytes)} {'would be ' if dry_run else ''}freed")
    elif not done.projects and not trees:
        echo("There is nothing to clean away.")
    return 0
