"""`run.json`: what a run is, format 1. Written by the training process alone, replaced
atomically."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.event_log import EndStatus
from assay.core.json_codec import read_json, write_json

FORMAT = 1
FILE_NAME = "run.json"
MAX_BYTES = 64 << 20
MISSING = "run.json is missing: the run was stopped before it began, or it was deleted."
IMPORTED = "imported."
"""How the names of values begin that say where a run was imported from: `imported.from`, `imported.path`, ..."""

UNSAVED = "final weights not kept"
"""Prefix of the reason of an attempt that came to its own end, but could not write its final checkpoint."""

Kind = Literal["train", "test"]
WrittenStatus = Literal["running", "finished", "failed", "stopped"]
Status = Literal["running", "finished", "failed", "stopped", "killed", "unknown", "damaged"]
"""Statuses that are written, those that are derived (killed, unknown), and that of an unreadable `run.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The code as it was: `snapshot` is the digest of the tree in the project's code store, "" when
    there is none.

    `patch` is that of what was not committed. `keys` are digests of functions and modules that were
    marked, by name.
    """

    snapshot: str = ""
    files: int = 0
    left_out: tuple[str, ...] = ()
    git_commit: str = ""
    git_dirty: bool = False
    patch: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One metric in five numbers, over the current branch of its curve. `at_*`: the step of the
    extreme."""

    last: float
    step: int
    count: int
    min: float
    at_min: int
    max: float
    at_max: int
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value of the metric that `[checkpoint] best` names, and the checkpoint that holds
    it."""

    metric: str
    mode: Literal["min", "max"]
    value: float
    step: int
    checkpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch or resume. Times are unix ns; `changed` are config keys that differ from the
    attempt before.

    `changed_code` are files of the code that do.
    """

    number: int
    started_ns: int
    ended_ns: int | None = None
    status: WrittenStatus = "running"
    reason: str = ""
    from_step: int = 0
    to_step: int = 0
    command: tuple[str, ...] = ()
    cwd: str = ""
    host: str = ""
    pid: int = 0
    config_hash: str = ""
    seedless_hash: str = ""
    changed: tuple[str, ...] = ()
    changed_code: tuple[str, ...] = ()
    launch: Mapping[str, Any] = field(default_factory=dict)
    code: Code = field(default_factory=Code)
    environment: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    exactness: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """Everything about a run that fits on a page. `parent` is RUN or RUN@CHECKPOINT by id, "" for
    none.

    `made_at` is the folder in which the newest attempt wrote it. `made_by` is a keyed digest by
    which the user who made it knows it again (`assay.store.authorship`), "" where no key could be
    kept.
    """

    format: int = FORMAT
    id: str
    kind: Kind
    tag: str = ""
    parent: str = ""
    created_ns: int
    project: str = ""
    config_path: str = ""
    status: WrittenStatus = "running"
    sealed: bool = False
    attempts: tuple[Attempt, ...] = ()
    summaries: Mapping[str, Summary] = field(default_factory=dict)
    best: Best | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    made_at: str = ""
    made_by: str = ""

    @property
    def newest(self) -> Attempt:
        return self.attempts[-1]

    @property
    def seconds(self) -> float:
        """How long the ended attempts lasted together."""
        return sum(
            (a.ended_ns - a.started_ns) / 1e9 for a in self.attempts if a.ended_ns is not None
        )


def read(folder: Path) -> RunFile:
    """The run of a folder. FileNotFoundError when there is none, RecordError when it cannot be
    read."""
    return read_json(folder / FILE_NAME, RunFile, version=FORMAT, limit=MAX_BYTES)


def write(folder: Path, run: RunFile, *, durable: bool = True) -> None:
    """Replace `run.json`; `durable` also survives power loss."""
    write_json(folder / FILE_NAME, run, durable=durable)


__all__ = [
    "Attempt",
    "Best",
    "Code",
    "EndStatus",
    "Kind",
    "RunFile",
    "Status",
    "Summary",
    "WrittenStatus",
]
