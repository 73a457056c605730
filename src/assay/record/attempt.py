"""Beginning of an attempt: its command, host and config hashes, and the code that it runs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.core import run_file
from assay.core.errors import AssayError, InputError
from assay.core.json_codec import write_atomic
from assay.core.run_file import Attempt, Code, RunFile
from assay.core.secret import Secrets
from assay.store.layout import Project, RunFolder


def new_attempt(
    number: int,
    *,
    started_ns: int,
    config_hash: str,
    seedless_hash: str,
    launch: Mapping[str, Any],
    seeds: Mapping[str, int],
    devices: Sequence[str],
    command: Sequence[str] | None,
    secrets: Secrets,
) -> Attempt:
    """Return an attempt of this OS process, without code and environment, without secrets."""
    return Attempt(
        number=number,
        started_ns=started_ns,
        command=secrets.command(sys.orig_argv if command is None else command),
        cwd=_working_directory(),
        host=platform.node(),
        pid=os.getpid(),
        config_hash=config_hash,
        seedless_hash=seedless_hash,
        launch=secrets.tree(launch),
        seeds=dict(seeds),
        devices=tuple(devices),
    )


def keep_snapshot(
    project: Project,
    folders: Sequence[Path],
    patch: Path,
    secrets: Secrets,
    *,
    frozen: Code | None = None,
) -> tuple[Code, str]:
    """Take a snapshot of the code and write what is not committed to the file `patch`.

    `frozen` is a snapshot that was taken before: this process runs its files.

    Return the snapshot and what went wrong with it: a run without its code is better than none.
    """
    # Imported only where code is kept: git and hashing are half of the time of a start.
    from assay.record.snapshot import STAT_CACHE, snapshot
    from assay.store.code_trees import code_blobs

    try:
        blobs = code_blobs(project)
        code = frozen or snapshot(
            project.root,
            blobs,
            folders=folders,
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
    from assay.store.code_trees import code_blobs, read_tree  # only where a run is resumed

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
