"""`assay import`."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.terminal import echo, show_progress
from assay.core.errors import AssayError, InputError, MissingExtraError, did_you_mean
from assay.core.formatting import count, name_some
from assay.core.ids import id_of_folder
from assay.core.terminal import elide, visible
from assay.store.known_projects import remember
from assay.store.layout import Project, RunFolder, open_project, refusal, scan_runs

if TYPE_CHECKING:
    from assay.interop.foreign_run import ForeignRun, ForeignSource

TOOLS = ("tensorboard", "mlflow", "wandb")
_TAG_CHARACTERS = 40


@click.command(
    name="import",
    help="Make records of what another tracker left in DIR: TensorBoard's event files, MLflow's"
    " mlruns or mlflow.db, wandb's offline runs. Their own libraries read them (pip install"
    " 'assay[mlflow]'). Nothing is changed there, and a run that is here already is passed over.",
)
@click.argument("tool", metavar="tensorboard|mlflow|wandb")
@click.argument("folder", metavar="DIR")
@click.option(
    "--again",
    is_flag=True,
    help="Take runs that are here already anew: they may have gone on since.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be imported; write nothing.")
def command(tool: str, folder: str, again: bool, dry_run: bool) -> int:
    found = _find(tool, Path(folder))
    project = open_project(Path.cwd(), create=not dry_run)
    if project.is_new:
        echo(f"assay: {project.root} is a project now (it has a folder .assay/).", err=True)
    here = {
        id_of_folder(entry.name): RunFolder(Path(entry.path))
        for entry in scan_runs(project.runs_dir)
    }
    known = [] if again else [run for run in found if run.run_id in here]
    wanted = [run for run in found if again or run.run_id not in here]
    failed = 0
    for i, run in enumerate(wanted, 1):
        show_progress(f"{i}/{len(wanted)} {visible(run.name)}")
        failed += not _take(project, run, here.get(run.run_id), dry_run=dry_run)
    if not dry_run:
        with contextlib.suppress(OSError):  # then it is only not listed by --all-projects
            remember(project.root)
    _sum_up(len(wanted) - failed, known, dry_run=dry_run)
    return 1 if failed else 0


def _find(tool: str, folder: Path) -> list[ForeignSource]:
    if tool not in TOOLS:
        fix = did_you_mean(tool, TOOLS) or f"there are {', '.join(TOOLS)}"
        raise InputError(f"Nothing can be imported from `{tool}`.", fix=fix)
    if not folder.exists():
        raise InputError("There is no such folder.", where=str(folder))
    if tool != "mlflow" and not folder.is_dir():
        raise InputError(
            "This is a file, not a folder.", where=str(folder), fix="give the folder that holds it"
        )
    if importlib.util.find_spec(tool) is None:
        raise MissingExtraError(f"`assay import {tool}`", extra=tool)
    from assay.interop import mlflow, tensorboard, wandb

    try:
        found = {"tensorboard": tensorboard.find, "mlflow": mlflow.find, "wandb": wandb.find}[tool](
            folder
        )
    except OSError as error:
        raise refusal(
            error, folder, "The folder cannot be read", fix="Make it readable, or copy it"
        ) from error
    return list({run.run_id: run for run in found}.values())


def _take(
    project: Project, found: ForeignSource, before: RunFolder | None, *, dry_run: bool
) -> bool:
    """Import one run; return False, with a message, if it cannot be read."""
    from assay.interop.import_run import write_run

    try:
        run = found.read()
        warnings = list(run.warnings)
        if not dry_run:
            _, warnings = write_run(project, found, run, before=before)
    except (AssayError, OSError) as error:
        show_progress("")
        reason = error.what if isinstance(error, AssayError) else str(error)
        path = visible(str(found.path))
        echo(
            f"error: {visible(found.name)} could not be imported: {visible(reason)} ({path})",
            err=True,
        )
        return False
    show_progress("")
    done = "would import" if dry_run else "imported" if before is None else "imported again"
    echo(f"{done}: {found.run_id}  {_line(run)}")
    for warning in warnings:
        echo(f"  warning: {visible(warning)}", err=True)
    return True


def _line(run: ForeignRun) -> str:
    parts = [count(run.metrics, "metric"), count(run.points, "point")]
    parts += [count(len(run.files), "file")] if run.files else []
    return f"{elide(visible(run.tag), _TAG_CHARACTERS)}  {', '.join(parts)}"


def _sum_up(done: int, known: list[ForeignSource], *, dry_run: bool) -> None:
    if known:
        names = name_some([elide(visible(run.name), _TAG_CHARACTERS) for run in known])
        echo(
            f"skipped: {count(len(known), 'run')} that {'is' if len(known) == 1 else 'are'} here"
            f" already: {names}"
        )
    if dry_run:
        echo(f"{count(done, 'run')} would be imported; nothing was written.")
    elif done:
        echo(f"{count(done, 'run')} imported. See them: assay ls --sort -created")
