"""`assay reindex`."""

from __future__ import annotations

import time

import click

from assay.cli.terminal import echo
from assay.core.formatting import count, duration
from assay.store import known_projects
from assay.store.index import reindex


@click.command(
    name="reindex",
    help="Make the index anew from the run folders. It is a cache: this loses nothing.",
)
@click.option("--all-projects", is_flag=True, help="That of every project that you have.")
def command(all_projects: bool) -> int:
    for project in (
        known_projects.all_projects() if all_projects else [known_projects.project_here()]
    ):
        began = time.perf_counter()
        runs = reindex(project)
        where = f"  {project.root}" if all_projects else ""
        echo(f"{count(runs, 'run')} indexed in {duration(time.perf_counter() - began)}{where}")
    return 0
