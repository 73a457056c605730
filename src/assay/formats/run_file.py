"""Format of `run.json`, version 1: written by the training process alone, replaced atomically."""

from __future__ import annotations

# hashlib brings OpenSSL along, which takes longer to load than what records does to start.
from _blake2 import blake2b
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.facts import EndStatus
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import decode_json, read_json, write_json

FORMAT = 1
FILE_NAME = "run.json"
MAX_BYTES = 64 << 20
MISSING = "run.json is missing: the run was stopped before it began, or it was deleted."
IMPORTED = "imported."
"""Prefix of the values that name the origin of an imported run: `imported.from`, ..."""

UNSAVED = "final weights not kept"
"""Prefix of the reason of an attempt that ended well without a final checkpoint."""

Kind = Literal["train", "test"]
WrittenStatus = Literal["running", "finished", "failed", "stopped"]
Status = Literal["running", "finished", "failed", "stopped", "killed", "unknown", "damaged"]
"""Written statuses, derived ones (killed, unknown), and that of a damaged `run.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code of an attempt: `snapshot` is the digest of its tree in the project's code store, or "".

    `git_remote` is the address of the repository, without a password; `patch` is the digest of the
    uncommitted changes. `keys` are digests of marked functions and
    modules, by name.
    """

    snapshot: str = ""
    files: int = 0
    left_out: tuple[str, ...] = ()
    git_commit: str = ""
    git_dirty: bool = False
    git_remote: str = ""
    patch: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of one metric over the current branch of its curve.

    `at_*`: the step of the extreme.
    """

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
    """Best value of the metric named by `[checkpoint] best`, and the checkpoint that holds it."""

    metric: str
    mode: Literal["min", "max"]
    value: float
    step: int
    checkpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Launch or resume of a run.

    Times are unix ns; `changed`: keys that differ from the attempt before. `seconds` is the time
    that it ran, by a clock that is never set and stands still while the machine is suspended. Of
    one that was killed the attempt after it writes them.

    `changed_code` are the changed files of the code. `config_digest` is that of the bytes of
    `config.toml`, "" in records of before. `made_by` is the keyed digest by which its author
    recognises it (`assay.store.authorship`).
    """

    number: int
    started_ns: int
    ended_ns: int | None = None
    seconds: float | None = None
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
    config_digest: str = ""
    changed: tuple[str, ...] = ()
    changed_code: tuple[str, ...] = ()
    launch: Mapping[str, Any] = field(default_factory=dict)
    code: Code = field(default_factory=Code)
    environment: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    exactness: str = ""
    resume: str = ""
    """The words on exact resume that its start printed."""
    made_by: str = ""

    @property
    def duration_s(self) -> float:
        """Seconds that it ran; 0 while it is open, and by the wall clock where no other is kept."""
        if self.seconds is not None:
            return self.seconds
        if self.ended_ns is None:
            return 0.0
        return max(0, self.ended_ns - self.started_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """Run, as one page of facts. `parent` is RUN or RUN@CHECKPOINT by id, or "".

    `made_at` is the folder in which the newest attempt wrote the file. `made_by` is a keyed digest
    by which its author recognises it (`assay.store.authorship`), "" where no key could be kept.
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
    best: Best | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    made_at: str = ""
    made_by: str = ""

    @property
    def newest(self) -> Attempt:
        return self.attempts[-1]

    @property
    def job(self) -> str:
        """Job that made the newest attempt, as `slurm 12` or `queue node3:12`; "" without one."""
        return str(self.newest.launch.get("job", "")) if self.attempts else ""

    @property
    def seconds(self) -> float:
        """Duration of all ended attempts together."""
        return sum(attempt.duration_s for attempt in self.attempts)


def digest_of_config(path: Path) -> str:
    """Return a digest of the bytes of a config; "" where there is none that can be read."""
    try:
        return blake2b(read_bytes(path, MAX_BYTES), digest_size=16).hexdigest()
    except OSError:
        return ""


def read(folder: Path) -> RunFile:
    """Read the run of a folder.

    FileNotFoundError without a file, RecordError if it is unreadable.
    """
    return read_json(folder / FILE_NAME, RunFile, version=FORMAT, limit=MAX_BYTES)


def decode(data: bytes) -> RunFile:
    """Decode the bytes of a `run.json`. RecordError if they are unreadable."""
    return decode_json(data, Path(FILE_NAME), RunFile, version=FORMAT)


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
