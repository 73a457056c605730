"""`assay board`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from assay.cli.completion import complete_runs
from assay.cli.terminal import echo
from assay.core.errors import InputError, MissingExtraError
from assay.core.ids import slug
from assay.interop.board import Board
from assay.query.find import select_runs
from assay.query.run import RunView

_EVERY_S = 2.0
_HOST = "127.0.0.1"


@click.command(
    name="board", help="Show the curves of runs in TensorBoard, on this machine only, until Ctrl-C."
)
@click.argument(
    "runs", metavar="RUN|EXPR...", nargs=-1, required=True, shell_complete=complete_runs
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=6006,
    show_default=True,
    help="0: any that is free.",
)
@click.option(
    "--logdir",
    metavar="DIR",
    help="Write the event files there and leave them; nothing is started.",
)
def command(runs: tuple[str, ...], port: int, logdir: str | None) -> int:
    views = select_runs(runs)
    named = {_name(view): view for view in views}
    if logdir is not None:
        if Path(logdir).exists() and any(Path(logdir).iterdir()):
            raise InputError("There is something in this folder.", where=logdir)
        with Board(named, Path(logdir)) as board:
            echo(f"{board.update()} points written to {logdir}")
        return 0
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError("`assay board` without --logdir", extra="tensorboard")
    with (
        tempfile.TemporaryDirectory(prefix="assay-board-") as name,
        Board(named, Path(name)) as board,
    ):
        board.update()
        return _serve(board, Path(name), port)


def _serve(board: Board, folder: Path, port: int) -> int:
    arguments = [
        "--logdir",
        str(folder),
        "--host",
        _HOST,
        "--port",
        str(port),
        "--reload_interval",
        "2",
    ]
    with subprocess.Popen([sys.executable, "-m", "tensorboard.main", *arguments]) as viewer:
        try:
            while True:
                try:
                    return viewer.wait(_EVERY_S)
                except subprocess.TimeoutExpired:
                    board.update()
        except KeyboardInterrupt:
            return 0
        finally:
            viewer.terminate()


def _name(view: RunView) -> str:
    return f"{slug(view.tag) or 'run'}-{view.id}"
