"""A run as another tracker kept it, in terms of ours."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.errors import RecordError
from assay.core.facts import EndStatus
from assay.core.formatting import size
from assay.core.ids import run_id_of
from assay.core.regular_file import hollowness, open_regular, read_bytes
from assay.formats.metrics_file import KeySet
from assay.store.series import Block

Tool = Literal["tensorboard", "mlflow", "wandb"]

MAX_BYTES = 8 << 30
MAX_FILES = 200_000
MAX_FOLDERS_DEEP = 50
_MAX_NS = (1 << 63) - 1
_VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # since 3.17 its folders are no longer opened unasked
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",  # a connection that is kept keeps the file open
    "WANDB_ERROR_REPORTING": "false",
}
"""Set while a library is imported and called."""
_KINDS = {
    ".png": "image",
    ".jpg": "image",
    ".jpeg": "image",
    ".gif": "image",
    ".wav": "audio",
    ".mp4": "video",
    ".txt": "text",
    ".md": "text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFile:
    """Something to keep as an artifact: bytes, or a file to copy. The name is data."""

    name: str
    source: bytes | Path
    at_ns: int
    kind: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRun:
    """All that could be read of one run. `parent` is the id that the tracker has for it.

    `about` is what the tracker knows of where the run belongs, as its project. `warnings` say what
    was not taken.
    """

    tag: str
    desc: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    labels: Sequence[str] = ()
    status: EndStatus = "finished"
    reason: str = ""
    parent: str = ""
    created_ns: int
    ended_ns: int
    command: Sequence[str] = ()
    host: str = ""
    user: str = ""
    git_commit: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    blocks: Sequence[Block] = ()
    files: Sequence[ForeignFile] = ()
    output: bytes | Path = b""
    warnings: Sequence[str] = ()

    @property
    def points(self) -> int:
        return sum(len(block.steps) * len(block.keys.names) for block in self.blocks)

    @property
    def metrics(self) -> int:
        return len({name for each in self.blocks if len(each.steps) for name in each.keys.names})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSource:
    """A run that is there to be read. `key` is what it is known by wherever its files lie."""

    tool: Tool
    key: str
    name: str
    path: Path
    read: Callable[[], ForeignRun]

    @property
    def run_id(self) -> str:
        """The id that it has here: the same however often it is imported."""
        return foreign_run_id(self.tool, self.key)


def foreign_run_id(tool: Tool, key: str) -> str:
    return run_id_of(f"{tool} {key}")


def block_of(
    names: Sequence[str],
    steps: Sequence[int],
    times_ns: Sequence[int],
    columns: Sequence[Sequence[float]],
    *,
    axis: int | None = None,
    branches: Sequence[int] = (),
) -> Block:
    """Return rows of metrics logged together, a column each; `branches` is 0 on the curve."""
    import numpy as np  # here: whoever looks at a list of files must not pay for it

    return Block(
        KeySet(tuple(names), axis),
        np.arange(len(steps)),
        np.array(steps, np.int64),
        np.array(times_ns, np.int64),
        np.array(branches or [0] * len(steps), np.int64),
        np.array(columns, np.float64).T.reshape(len(steps), len(names)),
    )


def ns_of(seconds: float) -> int:
    """Unix time in whole nanoseconds; what is no time at all is 0."""
    return min(max(0, round(seconds * 1e9)), _MAX_NS) if math.isfinite(seconds) else 0


def media_kind(name: str) -> str:
    """Return how a file of that name may be shown."""
    return _KINDS.get(os.path.splitext(name)[1].lower(), "")


@contextlib.contextmanager
def quiet_library() -> Iterator[None]:
    """Import or call a tracker's own library: quietly, without messages to its maker.

    What it would say of a file is said by us.
    """
    before = {name: os.environ.get(name) for name in _VARIABLES}
    level = logging.root.manager.disable
    os.environ.update(_VARIABLES)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_foreign_file(path: Path) -> None:
    """Raise OSError where a path is no file, RecordError where it is too large for a library."""
    os.close(open_regular(path, follow=True))
    about = path.stat()
    if about.st_size > MAX_BYTES:
        what = f"The file is too large: it has {size(about.st_size)}."
        raise RecordError(what, where=str(path), fix=f"At most {size(MAX_BYTES)} are read")
    if why := hollowness(about):
        raise RecordError(f"The file is too large: {why}.", where=str(path))


def read_file(path: Path) -> bytes:
    """Read a whole file; OSError where it is none, RecordError where it is too large."""
    check_foreign_file(path)
    return read_bytes(path, MAX_BYTES, follow=True)


def files_below(folder: Path, root: Path, *, left_out: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder by path; links are followed only inside of `root`.

    Pipes, devices and what lies deeper or is more than any tracker writes are left out, and told.
    """
    inside = os.path.realpath(root)
    if not folder.is_dir():
        return
    if not is_inside(inside, folder):
        left_out.append(f"{folder.name} is a link that leads out of the folder that was given")
        return
    found = 0
    for path in paths_below(folder, left_out):
        shown = path.relative_to(folder).as_posix()
        if found == MAX_FILES:
            left_out.append(f"all after the first {MAX_FILES} files of {folder.name}")
            return
        if path.is_symlink() and not is_inside(inside, path):
            left_out.append(f"{shown} is a link that leads out of the folder that was given")
        elif path.is_file():
            found += 1
            yield shown, path
        elif path.is_symlink():
            left_out.append(f"{shown} is a link to no file")
        else:
            left_out.append(f"{shown} is no file")


def paths_below(folder: Path, left_out: list[str]) -> Iterator[Path]:
    """Everything below a folder that is no folder itself, in order; links are not gone into."""
    todo = [(folder, 0)]
    while todo:
        here, depth = todo.pop()
        inner = []
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            left_out.append(f"{here} cannot be read: {error.strerror}")
            continue
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
            elif depth < MAX_FOLDERS_DEEP:
                inner.append((Path(entry.path), depth + 1))
            else:
                left_out.append(f"{entry.path} lies deeper than {MAX_FOLDERS_DEEP} folders")
        todo += reversed(inner)


def is_inside(real_root: str, path: Path) -> bool:
    """Return whether a path, its links followed, lies in a folder that is given without links."""
    return os.path.commonpath([real_root, os.path.realpath(path)]) == real_root
