"""`assay find`."""

from __future__ import annotations

from pathlib import Path

import click

from assay.cli.completion import complete_files
from assay.cli.terminal import echo, echo_json
from assay.core.errors import InputError
from assay.core.terminal import visible
from assay.query.provenance import Provenance, find_by_name, find_origins
from assay.store import known_projects


@click.command(
    name="find",
    help="Which run made FILE: a checkpoint, an artifact, a file in a folder that was watched,"
    " code. It is known by its content, so a copy will do. What is no file here is looked for in"
    " the names of all these but code. Exits with 1 when nothing is found.",
)
@click.argument("file", shell_complete=complete_files)
@click.option("--all-projects", is_flag=True, help="In all projects that you have.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(file: str, all_projects: bool, as_json: bool) -> int:
    homes = known_projects.projects_here()
    if all_projects or not homes:
        homes = known_projects.all_projects()
    path = Path(file)
    if path.exists():
        found = find_origins(path, homes)
    elif "/" in file:
        raise InputError(
            "There is no such file.", where=file, fix="a name without / is looked for in all runs"
        )
    else:
        found = find_by_name(file, homes)
    if as_json:
        echo_json([_data(each) for each in found])
    for each in [] if as_json else found:
        step = f"  step {each.step}" if each.step is not None else ""
        tag = visible(each.run.tag) or "-"
        echo(f"{each.run.id}  {tag}  {each.what}{step}  {visible(each.name)}")
    if not found:
        where = (
            "no project that you have"
            if all_projects or len(homes) != 1
            else "this project; try --all-projects"
        )
        echo(
            f"No run made it in {where}."
            if "try" in where
            else f"No run made it: {where} knows it.",
            err=True,
        )
    return 0 if found else 1


def _data(origin: Provenance) -> dict[str, object]:
    run = origin.run
    return {
        "run": run.id,
        "tag": run.tag,
        "what": origin.what,
        "name": origin.name,
        "step": origin.step,
        "path": str(run.path.absolute()),
    }
