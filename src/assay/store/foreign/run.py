"""A run as another tracker kept it, in terms of ours."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from assay.core.facts import EndStatus
from assay.core.ids import run_id_of
from assay.core.metrics_file import KeySet
from assay.store.series import Block

Tool = Literal["tensorboard", "mlflow", "wandb"]

_MAX_NS = (1 << 63) - 1
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

    `about` is what the tracker knows of where the run belongs, as its project. `warnings` say what was not taken.
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
        return len({name for block in self.blocks for name in block.keys.names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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


def curve(
    number: int,
    name: str,
    steps: Sequence[int],
    times_ns: Sequence[int],
    values: Sequence[float],
    branches: Sequence[int] = (),
) -> Block:
    """One metric that was logged by itself. `branches`: 0 for a point on the curve, else what left it (none: all 0)."""
    block = Block(KeySet(number, (name,)))
    at = 0
    for branch, those in groupby(branches or [0] * len(steps)):
        end = at + sum(1 for _ in those)
        block.add(steps[at:end], times_ns[at:end], [values[at:end]], branch, at)
        at = end
    return block


def ns_of(seconds: float) -> int:
    """Unix time in whole nanoseconds; what is no time at all is 0."""
    return min(max(0, round(seconds * 1e9)), _MAX_NS) if math.isfinite(seconds) else 0


def kind_of(name: str) -> str:
    """How a file of that name may be shown."""
    return _KINDS.get(os.path.splitext(name)[1].lower(), "")


def files_below(folder: Path, root: Path, *, left_out: list[str]) -> Iterator[tuple[str, Path]]:
    """The files below a folder, by their path in it. Links are followed as long as they stay inside of `root`."""
    inside = os.path.realpath(root)
    if not folder.is_dir():
        return
    if not _is_in(inside, folder):
        left_out.append(f"{folder.name} is a link that leads out of the folder that was given")
        return
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *(each for each in folders if os.path.islink(os.path.join(parent, each)))]):
            path = Path(parent, name)
            shown = path.relative_to(folder).as_posix()
            if path.is_symlink() and not _is_in(inside, path):
                left_out.append(f"{shown} is a link that leads out of the folder that was given")
            elif path.is_file():
                yield shown, path
            elif path.is_symlink():
                left_out.append(f"{shown} is a link to no file")


def _is_in(inside: str, path: Path) -> bool:
    return os.path.commonpath([inside, os.path.realpath(path)]) == inside
