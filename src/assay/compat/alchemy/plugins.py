"""Plugins of alchemy as its tutorial names them."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from assay.compat.alchemy.registrable import Registrable
from assay.compat.alchemy.symbols import sym_tbl
from assay.config import dump
from assay.config.loading import Config
from assay.config.secret_keys import without_secrets
from assay.core.errors import InputError
from assay.core.facts import Warned
from assay.plugins import TensorBoard
from assay.record.info import info_lines
from assay.record.logfile import LOGGER, formatter
from assay.record.recorder import RunRecorder
from assay.record.snapshot import copy_code
from assay.store.code_trees import code_blobs
from assay.store.layout import LINKS_TO_CHECKPOINTS, Project

__all__ = [
    "Backup",
    "BasicSetup",
    "DisplayRunningInfo",
    "FileLogger",
    "Seeding",
    "TensorboardLogger",
]

_PACKAGE = str(Path(__file__).parents[2])


class RunnerPlugin(Registrable):
    """Plugin that does its work when the run begins; `recorder` is None without a record."""

    def __enter__(self) -> None:
        self.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def begin(self) -> None:
        """Do the work of the plugin."""

    def end(self) -> None:
        """Undo what has to be undone."""

    @property
    def recorder(self) -> RunRecorder | None:
        found = sym_tbl().try_get("recorder")
        return found if isinstance(found, RunRecorder) else None


class BasicSetup(RunnerPlugin):
    """Shows the log lines of your own code on the console, with tag, time, level and place.

    The rest of alchemy's set-up is done by `--debug`: CUDA_LAUNCH_BLOCKING, and DEBUG in the logs.
    """

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None

    def begin(self) -> None:
        table = sym_tbl()
        if table.debug:
            return  # `--debug` shows every line already
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.INFO)
        handler.addFilter(lambda line: not line.pathname.startswith(_PACKAGE))
        handler.setFormatter(formatter(str(table.cfg.get("tag", ""))))
        logging.getLogger(LOGGER).addHandler(handler)
        self._handler = handler

    def end(self) -> None:
        if self._handler is not None:
            logging.getLogger(LOGGER).removeHandler(self._handler)


class FileLogger(RunnerPlugin):
    """Lays out the record as alchemy does; `--no-file` leaves it out.

    `log_dir` gets a link to the record, under the name of the record. The record gets `cfg.toml`
    (the config as it was given), `checkpt/` with links `best` and `latest`, and each of `subdirs`.
    """

    def __init__(self, log_dir: str, subdirs: Sequence[str] = ()) -> None:
        self.log_dir = inside_working_directory(log_dir, "log_dir")
        self.subdirs = [inside_working_directory(name, "subdirs") for name in subdirs]

    def begin(self) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        folder = recorder.folder.path
        for name in self.subdirs:
            (folder / name).mkdir(parents=True, exist_ok=True)
        config = sym_tbl().try_get("run_config")
        if isinstance(config, Config):
            written = dump(without_secrets(as_given(config), recorder.secrets))
            (folder / "cfg.toml").write_text(written, encoding="utf-8")
        (folder / LINKS_TO_CHECKPOINTS).mkdir(exist_ok=True)
        if _is_temporary(folder):
            return  # a link would soon lead nowhere
        self.log_dir.mkdir(parents=True, exist_ok=True)
        _link(self.log_dir / folder.name, folder.resolve())

    def end(self) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        kept = sorted(path.name for path in recorder.folder.checkpoints.glob("step-*"))
        best = recorder.run.best
        names = {"best": best.checkpoint if best else "", "latest": kept[-1] if kept else ""}
        for name, checkpoint in names.items():
            if checkpoint:
                # Relative: it holds in a record that is moved, and is known as a link of our own.
                target = Path("..", recorder.folder.checkpoints.name, checkpoint)
                _link(recorder.folder.path / LINKS_TO_CHECKPOINTS / name, target)


def _is_temporary(folder: Path) -> bool:
    """Return whether a folder belongs to a proof, which is gone when that has ended."""
    temporary, folder = Path(tempfile.gettempdir()).resolve(), folder.resolve()
    is_below = folder.is_relative_to(temporary)
    return is_below and folder.relative_to(temporary).parts[0].startswith("assay-")


class Backup(RunnerPlugin):
    """Copies files and folders of the working directory into `backup/` of the record.

    By the rules of the code snapshot: no ignored, large or secret files, no secrets in the others.
    `alchemy` without such a folder is `assay.compat.alchemy`, which stands for it.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = {name: inside_working_directory(name, "paths") for name in paths}

    def begin(self) -> None:
        recorder = self.recorder
        if recorder is None:
            return
        for name, path in self.paths.items():
            source = path
            if name == "alchemy" and not path.exists():
                source = Path(__file__).parent
            if not source.exists():
                recorder.tell(Warned(message=f"Backup: there is no {name} to copy"))
                continue
            target = recorder.folder.path / "backup" / path
            blobs = code_blobs(Project(Path(recorder.run.project)))
            for left_out in copy_code(source, target, blobs, recorder.secrets):
                recorder.tell(Warned(message=f"Backup of {name}: not as it is: {left_out}"))


class TensorboardLogger(TensorBoard):
    """Writes event files into `board/` of the record."""

    def __init__(self) -> None:
        super().__init__()


class Seeding(RunnerPlugin):
    """Seeds the run: its arguments set `seed` and `train.deterministic` of the config.

    A config that has these keys itself keeps its own values. The seed of Python's hashes is none
    of them: `assay run` fixes it when the interpreter begins, as nothing can later.
    """

    def __init__(self, seed: int, use_deterministic_algorithms: bool = False) -> None:
        self.seed = seed
        self.use_deterministic_algorithms = use_deterministic_algorithms


class DisplayRunningInfo(RunnerPlugin):
    """Prints tag, devices, versions and config at the start of the run."""

    def begin(self) -> None:
        recorder = self.recorder
        table = sym_tbl()
        if recorder is None:
            table.console.print(f"tag {table.cfg.get('tag', '-')}  device {table.device}")
            return
        text = recorder.folder.config_toml.read_text(encoding="utf-8")
        for line in info_lines(recorder.run, text):
            table.console.print(line, markup=False, highlight=False)


def inside_working_directory(name: str, argument: str) -> Path:
    """Return the relative path of `name`, which stays inside any folder that it is joined to.

    Raises InputError for an absolute path, one with `..`, and one whose links lead out of the
    working directory.
    """
    path = Path(name)
    home = Path.cwd().resolve()
    try:
        place = (home / path).resolve()
        # Links in a circle are no error from Python 3.13 on: the place is then still a link.
        is_inside = place.is_relative_to(home) and not place.is_symlink()
        is_inside = is_inside or _is_temporary(home)  # a proof links the project's data into it
    except (OSError, RuntimeError, ValueError):  # links in a circle, a null byte
        is_inside = False
    if path.is_absolute() or ".." in path.parts or not is_inside:
        raise InputError(
            f"`{argument}` is no path inside of the working directory: {name!r}.",
            fix="Give a relative path without `..`.",
        )
    return path


def as_given(config: Config) -> Any:
    """Return the config with the keys that were given; the resolved one where overrides hold."""
    is_changed = config.overrides or config.variant or config.point
    return config.root if is_changed or config.unaliased is None else config.unaliased


def _link(link: Path, target: Path) -> None:
    """Make `link` lead to `target`, in place of an older link."""
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(target, target_is_directory=True)
