"""`assay restore`."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import click

from assay.cli.one_run import run_argument
from assay.cli.permission import permission, trust_option
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.core.formatting import count
from assay.core.ids import id_of_folder
from assay.formats.json_codec import write_atomic
from assay.query.diff import code_store
from assay.query.find import checkpoint_of, find
from assay.query.run import RunView
from assay.store.code_trees import (
    holds_records_alone,
    make_room,
    path_in_copy,
    write_beside_records,
    write_tree,
)
from assay.store.layout import find_project, make_project


@click.command(
    name="restore",
    help="The code and config of a run as they were, in a folder of their own; with RUN@CKPT that"
    " checkpoint too.",
)
@run_argument("[RUN[@CKPT]]")
@trust_option
@click.option("-o", "--to", metavar="DIR", help="The folder to make. Left out: restored-ID, here.")
@click.option("--force", is_flag=True, help="Move away what is in DIR; nothing is deleted.")
def command(run: str, to: str | None, force: bool, trust: bool) -> int:
    view, name = find(run)
    checkpoint = checkpoint_of(view, name) if name else None
    if not view.code.snapshot:
        raise InputError(f"No code was kept with {view.id}.", where=str(view.path))
    from assay.compose.trust import permit_code, read_code

    permit_code(view, trust=permission(trust))
    store = code_store(view)
    tree = read_code(view)
    folder = Path(to or f"restored-{view.id}")
    home = find_project(view.path)
    if home is not None and home.root == folder.resolve() and holds_records_alone(home.root):
        files = write_beside_records(tree, store, folder)
    else:
        aside = make_room(folder, force=force)
        if aside is not None:
            echo(f"moved away: {aside}", err=True)
        files = write_tree(tree, store, folder)
        make_project(folder.resolve())
    echo(f"restored: {os.fspath(folder)}  {count(len(files), 'file')} of code")
    if checkpoint is not None:
        kept = folder / "checkpoints" / checkpoint.name
        shutil.copytree(checkpoint.path, kept)
        echo(f"checkpoint: {os.fspath(kept)}")
    if view.code.left_out:
        echo(f"not kept at the time: {', '.join(view.code.left_out[:5])}", err=True)
    if view.config_text and view.file.config_path:
        echo(f"run it again: {shlex.join(_run_again(view, folder))}")
    elif view.file.attempts and view.file.newest.command:
        echo(f"it was started by: {shlex.join(view.file.newest.command)}")
    return 0


def _run_again(view: RunView, folder: Path) -> list[str]:
    """Write the resolved config beside its modules; return the command that trains it."""
    root = Path(view.file.project)
    kept = [
        Path(each)
        for attempt in reversed(view.file.attempts)
        for each in attempt.launch.get("user_dirs", ())
    ]
    given = Path(view.file.config_path).parent
    # The config of a run that was trained again lay in that run's folder, where no modules are.
    home = kept[0] if kept and id_of_folder(given.name) is not None else given
    beside = path_in_copy(home, root, folder)
    config = beside / f"run-{view.id}.toml"
    beside.mkdir(parents=True, exist_ok=True)
    write_atomic(config, view.config_text.encode("utf-8", "surrogateescape"), durable=False)
    modules = [path_in_copy(path, root, folder) for path in kept[:1]]
    elsewhere = [
        f"--user-dir={os.fspath(path)}" for path in modules if path != beside and path.is_dir()
    ]
    return ["assay", "run", os.fspath(config), *elsewhere]
