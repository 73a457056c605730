"""Runs of wandb, by its own messages: `wandb/*run-*/run-*.wandb`, and the files beside it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from assay.core.errors import InputError, RecordError
from assay.core.facts import EndStatus
from assay.core.regular_file import read_start
from assay.formats.json_codec import parse_json
from assay.interop.foreign_run import (
    ForeignFile,
    ForeignRun,
    ForeignSource,
    files_below,
    is_inside,
    media_kind,
    quiet_library,
    read_file,
)
from assay.interop.wandb_log import HEAD, DamagedLogError, Medium, WandbLog, log_records

_BEGINNING_BYTES = 1 << 20
_OUTPUT = "output.log"
_MEDIA = {
    "image-file": "image",
    "audio-file": "audio",
    "video-file": "video",
    "table-file": "table",
}


def find(root: Path) -> list[ForeignSource]:
    """The runs of a folder `wandb`, of the one that holds it, or of one run, the oldest first.

    InputError when there are none.
    """
    real_root = os.path.realpath(root)
    patterns = ("*.wandb", "*/*.wandb", "wandb/*/*.wandb")
    paths = [
        path
        for each in patterns
        for path in sorted(root.glob(each))
        if not path.parent.is_symlink() and is_inside(real_root, path)
    ]
    if not paths:
        what = "There are no runs of wandb in this folder."
        raise InputError(
            what,
            where=str(root),
            fix="They are files wandb/offline-run-*/run-*.wandb or wandb/run-*/run-*.wandb",
        )
    # Each attempt of a run that was resumed has a file of its own, under the one id.
    runs: dict[tuple[str, ...], list[tuple[Path, WandbLog]]] = {}
    for path in paths:
        log = _beginning(path)
        belongs = (
            (log.about["entity"], log.about["project"], log.run_id) if log.run_id else (str(path),)
        )
        runs.setdefault(belongs, []).append((path, log))
    return [
        _source_of(sorted(parts, key=lambda part: part[1].start_ns), root)
        for parts in runs.values()
    ]


def _beginning(path: Path) -> WandbLog:
    """Read what a file says of its run, without its rows."""
    log = WandbLog()
    with contextlib.suppress(*_unreadable()):
        for record in _records(read_start(path, _BEGINNING_BYTES, follow=True)):
            log.add(record)
            if log.run_id:
                break
    return log


def _records(data: bytes) -> Iterator[Any]:
    """Yield the records of a file; one of `_unreadable` at the first that cannot be read."""
    with quiet_library():
        from wandb.proto.wandb_internal_pb2 import Record
    if not data.startswith(HEAD):
        raise DamagedLogError("it is no file of wandb: it begins otherwise")
    for record in log_records(data):
        yield Record.FromString(record)


def _unreadable() -> tuple[type[Exception], ...]:
    """Return the errors of a damaged frame, message or JSON."""
    with quiet_library():
        from google.protobuf.message import DecodeError
    return DecodeError, ValueError, RecursionError


def _source_of(parts: list[tuple[Path, WandbLog]], root: Path) -> ForeignSource:
    paths = [path for path, _ in parts]
    path, log = parts[0]
    run_id = path.stem.removeprefix("run-")
    # An id may be given again to another run, once the first is deleted: a run is known by its
    # beginning, too.
    key = f"{log.run_id or run_id} {log.start_ns}"
    return ForeignSource(
        tool="wandb",
        key=key,
        name=log.name or run_id,
        path=path.parent,
        read=partial(_read, paths, root),
    )


def _read(paths: list[Path], root: Path) -> ForeignRun:
    log = WandbLog()
    warnings = [warning for path in paths for warning in _add_file(log, path)]
    path = paths[0]
    status, reason = _ending(log.exit_code)
    created_ns = log.start_ns or log.first_ns or path.stat().st_mtime_ns
    files, output = _files(log, [each.parent / "files" for each in paths], root, warnings)
    if log.artifacts:
        named = ", ".join(sorted(log.artifacts))
        warnings.append(f"Artifacts that wandb keeps elsewhere were not copied: {named}")
    return ForeignRun(
        tag=log.name or log.run_id or path.stem,
        desc=log.notes,
        config={key: value for key, value in log.config.items() if key != "_wandb"},
        values=dict(log.results()),
        about={"id": log.run_id, **log.about},
        labels=log.labels,
        status=status,
        reason=reason,
        created_ns=created_ns,
        ended_ns=max(created_ns, log.last_ns, created_ns + log.runtime_s * 1_000_000_000),
        command=log.command,
        host=log.host,
        user=log.user,
        git_commit=log.git_commit,
        environment={"python": log.python} if log.python else {},
        blocks=list(log.blocks()),
        files=files,
        output=output or "".join(log.lines).encode("utf-8", "replace"),
        warnings=warnings,
    )


def _add_file(log: WandbLog, path: Path) -> list[str]:
    """Add the records of an attempt up to one that cannot be read; return a warning of that."""
    log.begin_attempt()
    count = 0
    data = read_file(path)
    try:
        for record in _records(data):
            log.add(record)
            count += 1
    except _unreadable() as error:
        if not count:
            raise RecordError(f"It cannot be read: {error}.", where=str(path)) from error
        return [f"{path}: {error}; what follows its first {count} records was left out"]
    return []


def _ending(exit_code: int | None) -> tuple[EndStatus, str]:
    """Return the status of a run and its reason."""
    if exit_code is None:
        return "stopped", "wandb has no end of it"
    if exit_code:
        return "failed", f"exit code {exit_code}"
    return "finished", ""


def _files(
    log: WandbLog, folders: list[Path], root: Path, warnings: list[str]
) -> tuple[list[ForeignFile], bytes | Path]:
    """Return the files to keep and the output; media have the name and step of their log call."""
    left_out: list[str] = []
    there: dict[str, Path] = {}
    outputs: list[Path] = []
    for folder in folders:  # of a name that several attempts have, that of the last one
        there |= files_below(folder, root, left_out=left_out)
        if _OUTPUT in there:
            outputs.append(there.pop(_OUTPUT))
    output = outputs[0] if len(outputs) == 1 else b"".join(map(read_file, outputs))
    found: list[ForeignFile] = []
    missing = 0
    for medium in log.media:
        if medium.about.get("_type") == "histogram":
            found.append(_histogram(medium))
            continue
        for name in _names_of(medium):
            path = there.pop(name, None) if isinstance(name, str) else None
            if path is None:
                missing += 1
            else:
                found.append(_medium_file(medium, path))
    if missing:
        warnings.append(f"{missing} of what was logged is in no file that can be copied")
    warnings += left_out
    for name, path in there.items():
        at_ns = path.stat().st_mtime_ns
        found.append(ForeignFile(name=name, source=path, at_ns=at_ns, kind=media_kind(name)))
    return found, output


def _names_of(medium: Medium) -> list[Any]:
    """Return the names of the files of a log call."""
    names = medium.about.get("filenames")
    if isinstance(names, list) and names:
        return names
    return [medium.about.get("path")]


def _medium_file(medium: Medium, path: Path) -> ForeignFile:
    kind = str(medium.about.get("_type", ""))
    known = "image" if kind.startswith("images") else _MEDIA.get(kind, media_kind(path.name))
    source: bytes | Path = _as_csv(path) if known == "table" else path
    return ForeignFile(
        name=medium.name, source=source, at_ns=medium.at_ns, kind=known, step=medium.step
    )


def _histogram(medium: Medium) -> ForeignFile:
    fields = {
        "edges": medium.about.get("bins"),
        "counts": medium.about.get("values"),
        "sum": 0.0,
        "sum_of_squares": 0.0,
    }
    data = json.dumps({**fields, "non_finite": 0}).encode()
    return ForeignFile(
        name=medium.name, source=data, at_ns=medium.at_ns, kind="histogram", step=medium.step
    )


def _as_csv(path: Path) -> bytes | Path:
    """A table of wandb as one of ours; the file as it is where it is something else."""
    try:
        table = parse_json(read_file(path))
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(table["columns"])
        writer.writerows(table["data"])
        return lines.getvalue().encode("utf-8", "surrogateescape")
    except (ValueError, KeyError, TypeError, RecursionError, csv.Error):
        return path
