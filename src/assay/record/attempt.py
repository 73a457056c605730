"""Beginning of an attempt: its command, host and config hashes, and the code that it runs."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError, InputError
from assay.core.secrets.replacement import Secrets
from assay.formats import run_file
from assay.formats.json_codec import write_atomic
from assay.formats.run_file import Attempt, Code, RunFile
from assay.record.environment import environment
from assay.store.code_trees import code_blobs, read_tree
from assay.store.layout import Project, RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec:
    """Facts that the caller knows of an attempt; None stays as the attempt before had it.

    `config_toml` comes without secrets, and `secrets` are those that the caller knows. `code_dirs`
    are folders outside of the project whose code belongs to it; `code` is a snapshot that was taken
    before, of which this process runs the files. With `keep_output` all that the process prints is
    kept in `output.txt` and still shown. `log_format` and `date_format` are those of
    `logging.Formatter`, for `log.txt`.
    """

    config_toml: str | None = None
    config_files: Mapping[str, str] = field(default_factory=dict)
    config_hash: str | None = None
    seedless_hash: str | None = None
    launch: Mapping[str, Any] | None = None
    seeds: Mapping[str, int] | None = None
    devices: Sequence[str] = ()
    command: Sequence[str] | None = None
    code_dirs: Sequence[Path] = ()
    code: Code | None = None
    keep_code: bool = True
    keep_output: bool = False
    log_format: str = ""
    date_format: str = ""
    secrets: Secrets | None = None

    def known_secrets(self) -> Secrets:
        """Return the secrets of the caller, else those of the environment and the command."""
        return self.secrets or Secrets.among(os.environ, self.command_line)

    @property
    def command_line(self) -> Sequence[str]:
        return sys.orig_argv if self.command is None else self.command


def new_attempt(
    spec: AttemptSpec,
    number: int,
    *,
    code: Code,
    secrets: Secrets,
    before: Attempt | None = None,
) -> Attempt:
    """Return an attempt of this OS process that begins now, without secrets."""
    old = before or Attempt(number=0, started_ns=0)
    launch = old.launch if spec.launch is None else spec.launch
    seeds = old.seeds if spec.seeds is None else spec.seeds
    return Attempt(
        number=number,
        started_ns=time.time_ns(),
        command=secrets.command(spec.command_line),
        cwd=_working_directory(),
        host=platform.node(),
        pid=os.getpid(),
        config_hash=old.config_hash if spec.config_hash is None else spec.config_hash,
        seedless_hash=old.seedless_hash if spec.seedless_hash is None else spec.seedless_hash,
        launch=secrets.tree(launch),
        seeds=dict(seeds),
        devices=tuple(spec.devices),
        code=code,
        environment=environment(),
    )


def keep_snapshot(
    project: Project, spec: AttemptSpec, patch: Path, secrets: Secrets
) -> tuple[Code, str]:
    """Take a snapshot of the code and write what is not committed to the file `patch`.

    Return the snapshot and what went wrong with it: a run without its code is better than none.
    """
    if not spec.keep_code:
        return Code(), ""
    # Imported only where code is kept: git and hashing are half of the time of a start.
    from assay.record.snapshot import STAT_CACHE, snapshot

    try:
        blobs = code_blobs(project)
        code = spec.code or snapshot(
            project.root,
            blobs,
            folders=spec.code_dirs,
            skip=project.runs_dir,
            cache=project.code_dir / STAT_CACHE,
            secrets=secrets,
        )
        if code.patch:
            write_atomic(patch, blobs.get(code.patch), durable=False)
        return code, ""
    except (OSError, AssayError) as error:
        return Code(), f"The code could not be kept: {error}"


def changed_files(project: Project | None, before: Code, now: Code) -> tuple[str, ...]:
    """Return the files that differ between two snapshots; none when one of them is not here."""
    if project is None or before.snapshot == now.snapshot or not (before.snapshot and now.snapshot):
        return ()
    blobs = code_blobs(project)
    try:
        old, new = (read_tree(blobs, code.snapshot) for code in (before, now))
    except (KeyError, OSError, AssayError):
        return ()
    return tuple(sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path)))


def read_run(folder: RunFolder) -> RunFile:
    """Return `run.json` of a folder; InputError when there is no run in it."""
    try:
        return run_file.read(folder.path)
    except FileNotFoundError:
        raise InputError("There is no run in this folder.", where=str(folder.path)) from None


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted under this process
        return ""
