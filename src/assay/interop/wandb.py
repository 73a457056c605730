"""Reader of wandb's run folders: `wandb/*run-*/run-*.wandb`, and the files beside it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.core.errors import InputError, RecordError
from assay.core.event_log import EndStatus
from assay.core.json_codec import parse_json
from assay.core.metrics_file import KeySet
from assay.core.regular_file import read_start
from assay.interop import protobuf
from assay.interop.checksummed_records import Trouble, log_records
from assay.interop.foreign_run import (
    ForeignFile,
    ForeignRun,
    ForeignSource,
    files_below,
    kind_of,
    ns_of,
    read_file,
)
from assay.interop.nested_keys import flat
from assay.interop.protobuf import (
    Field,
    MalformedError,
    as_bytes,
    as_text,
    by_number,
    part,
    text,
    whole,
)
from assay.store.series import Block

_HEAD = b":W&B\xe1\xbe"
_HEAD_BYTES = 7
_BEGINNING_BYTES = 1 << 20
_OUTPUT = "output.log"
_MAX_NAMES = 10_000
"""Rows of more names are kept as several."""

_NOT_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MEDIA = {
    "image-file": "image",
    "audio-file": "audio",
    "video-file": "video",
    "table-file": "table",
}
_OWN_ARTIFACTS = ("run_table", "job", "wandb-history")


def find(root: Path) -> list[ForeignSource]:
    """The runs of a folder `wandb`, of the one that holds it, or of one run, the oldest first.

    InputError when there are none.
    """
    patterns = ("*.wandb", "*/*.wandb", "wandb/*/*.wandb")
    paths = [
        path
        for each in patterns
        for path in sorted(root.glob(each))
        if not path.parent.is_symlink()
    ]
    if not paths:
        what = "There are no runs of wandb in this folder."
        raise InputError(
            what,
            where=str(root),
            fix="They are files wandb/offline-run-*/run-*.wandb or wandb/run-*/run-*.wandb",
        )
    # Each attempt of a run that was resumed has a file of its own, under the one id.
    runs: dict[tuple[str, ...], list[tuple[Path, _WandbLog]]] = {}
    for path in paths:
        log = _beginning(path)
        belongs = (
            (log.about["entity"], log.about["project"], log.run_id) if log.run_id else (str(path),)
        )
        runs.setdefault(belongs, []).append((path, log))
    return [
        _found(sorted(parts, key=lambda part: part[1].start_ns), root) for parts in runs.values()
    ]


def _beginning(path: Path) -> _WandbLog:
    """Read what a file says of its run, without its rows."""
    data = read_start(path, _BEGINNING_BYTES, follow=True)
    log = _WandbLog()
    if data.startswith(_HEAD):
        for _, record in log_records(data, _HEAD_BYTES, Trouble(path)):
            log.add_or_pass(record)
            if log.run:
                break
    return log


def _found(parts: list[tuple[Path, _WandbLog]], root: Path) -> ForeignSource:
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
    log = _WandbLog()
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


def _add_file(log: _WandbLog, path: Path) -> list[str]:
    """Add the records of an attempt to the log; return a warning where some cannot be read."""
    data = read_file(path)
    if not data.startswith(_HEAD):
        raise RecordError("This is no file of wandb: it begins otherwise.", where=str(path))
    log.begin_attempt()
    trouble = Trouble(path)
    for offset, record in log_records(data, _HEAD_BYTES, trouble):
        try:
            log.add(record)
        except (MalformedError, ValueError, RecursionError):
            trouble.add(offset, "a record is not one of wandb")
    return [str(trouble)] if trouble.lost else []


def _ending(exit_code: int | None) -> tuple[EndStatus, str]:
    """Return the status of a run and its reason."""
    if exit_code is None:
        return "stopped", "wandb has no end of it"
    if exit_code:
        return "failed", f"exit code {exit_code}"
    return "finished", ""


@dataclass(slots=True)
class _HistoryRows:
    """Rows of one set of names. `axis`: which of them is the x axis of the others."""

    names: tuple[str, ...]
    axis: str
    steps: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Medium:
    name: str
    about: dict[str, Any]
    step: int
    at_ns: int


@dataclass(slots=True)
class _WandbLog:
    """State of a run, as the records so far said."""

    run: bool = False
    run_id: str = ""
    name: str = ""
    notes: str = ""
    host: str = ""
    user: str = ""
    git_commit: str = ""
    python: str = ""
    command: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    axis_patterns: list[tuple[str, str]] = field(default_factory=list)
    rows: dict[tuple[tuple[str, ...], str], _HistoryRows] = field(default_factory=dict)
    media: list[_Medium] = field(default_factory=list)
    artifacts: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    start_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    runtime_s: int = 0
    exit_code: int | None = None
    attempt: int = 0
    has_rows: bool = False
    """True when the attempt has logged something."""

    def begin_attempt(self) -> None:
        """Expect another file of the same run."""
        self.attempt += 1
        self.has_rows = False
        self.exit_code = None

    def add_or_pass(self, record: bytes) -> None:
        try:
            self.add(record)
        except (MalformedError, ValueError, RecursionError):
            return

    def add(self, record: bytes) -> None:
        for number, value in protobuf.fields(record):
            match number:
                case 2:
                    self._row(as_bytes(value))
                case 3:
                    _apply(self.summary, by_number(as_bytes(value)))
                case 5:
                    _apply(self.config, by_number(as_bytes(value)))
                case 4 | 13:
                    self.lines.append(text(by_number(as_bytes(value))[3]))
                case 8:
                    about = by_number(as_bytes(value))
                    if text(about[4]) not in _OWN_ARTIFACTS and not text(about[4]).startswith(
                        "wandb-"
                    ):
                        self.artifacts.add(text(about[5]))
                case 12:
                    self._metric(by_number(as_bytes(value)))
                case 17:
                    self._run(by_number(as_bytes(value)))
                case 18:
                    about = by_number(as_bytes(value))
                    self.exit_code, self.runtime_s = whole(about[1]), max(0, whole(about[2]))
                case 26:
                    self._environment(by_number(as_bytes(value)))

    def blocks(self) -> Iterator[Block]:
        number = 0
        for rows in self.rows.values():
            columns = list(zip(*rows.values, strict=True))
            for first in range(0, len(rows.names), _MAX_NAMES):
                names = rows.names[first : first + _MAX_NAMES]
                block = Block(
                    KeySet(number, names, names.index(rows.axis) if rows.axis in names else None)
                )
                at = 0
                for branch, those in groupby(rows.branches):
                    end = at + sum(1 for _ in those)
                    part = [column[at:end] for column in columns[first : first + _MAX_NAMES]]
                    block.add(rows.steps[at:end], rows.times_ns[at:end], part, branch, at)
                    at = end
                number += 1
                yield block

    def results(self) -> Iterator[tuple[str, Any]]:
        """Results: summary values that end no curve, and logged values that are no number."""
        curves = {name for rows in self.rows.values() for name in rows.names}
        for name, value in {**self.said, **dict(flat(self.summary))}.items():
            if name not in curves and not name.startswith("_") and not isinstance(value, dict):
                yield name, _number(value)

    def _run(self, about: dict[int, list[Field]]) -> None:
        self.run = True
        self.run_id, self.name, self.notes = (
            text(about[1]),
            text(about[8]) or self.name,
            text(about[9]) or self.notes,
        )
        self.host = text(about[13]) or self.host
        self.labels = list(dict.fromkeys([*self.labels, *map(as_text, about[10])]))
        names = {"entity": 2, "project": 3, "group": 6, "job_type": 7, "sweep": 12}
        self.about = {name: text(about[number]) for name, number in names.items()}
        start = part(about[17])
        self.start_ns = self.start_ns or max(0, whole(start[1]) * 1_000_000_000 + whole(start[2]))
        self.git_commit = text(part(about[21])[2])
        self.python = text(part(about[19])[4])
        _apply(self.config, part(about[4]))
        _apply(self.summary, part(about[5]))

    def _environment(self, about: dict[int, list[Field]]) -> None:
        program = text(about[6])
        self.command = [program, *map(as_text, about[5])] if program else self.command
        self.host, self.user = text(about[12]) or self.host, text(about[13])
        self.python = text(about[2]) or self.python
        self.git_commit = text(part(about[9])[2]) or self.git_commit

    def _metric(self, about: dict[int, list[Field]]) -> None:
        axis = text(about[4])
        if axis and about[1]:
            self.axes[text(about[1])] = axis
        elif axis and about[2]:
            self.axis_patterns.append((text(about[2]), axis))

    def _row(self, message: bytes) -> None:
        row: dict[str, Any] = {}
        step = 0
        for number, value in protobuf.fields(message):
            if number == 1:
                _put(row, by_number(as_bytes(value)))
            elif number == 2:
                step = whole(by_number(as_bytes(value))[1])
        if isinstance(row.get("_step"), int):
            step = row["_step"]
        at_ns = (
            ns_of(row["_timestamp"])
            if isinstance(row.get("_timestamp"), int | float)
            else self.last_ns
        )
        self.first_ns, self.last_ns = self.first_ns or at_ns, max(self.last_ns, at_ns)
        numbers: dict[str, float] = {}
        for name, value in flat(row):
            if name.startswith("_"):
                continue
            value = _number(value)
            if isinstance(value, int | float):
                numbers[name] = _float(value)
            elif isinstance(value, dict):
                self.media.append(_Medium(name=name, about=value, step=step, at_ns=at_ns))
            elif value is not None:
                self.said[name] = value
        if not self.has_rows:
            self.has_rows = True
            self._leave(step)
        self._keep(numbers, step, at_ns)

    def _leave(self, step: int) -> None:
        """Leave what earlier attempts logged from this step on, which the run repeated."""
        for rows in self.rows.values():
            for i, each in enumerate(rows.steps):
                if each >= step and not rows.branches[i]:
                    rows.branches[i] = self.attempt

    def _keep(self, numbers: dict[str, float], step: int, at_ns: int) -> None:
        """The numbers of one row, those with an x axis of their own together with it."""
        by_axis: dict[str, list[str]] = {}
        for name in numbers:
            axis = self._axis_of(name)
            by_axis.setdefault(axis if axis in numbers and axis != name else "", []).append(name)
        plain = by_axis.pop("", [])
        for axis, names in by_axis.items():
            if axis in plain:  # its own points once
                plain.remove(axis)
                names.insert(0, axis)
        for axis, names in [("", plain), *by_axis.items()]:
            if names:
                key = tuple(sorted(names)), axis  # the writer has them in any order
                rows = self.rows.get(key) or self.rows.setdefault(key, _HistoryRows(*key))
                rows.steps.append(step)
                rows.times_ns.append(at_ns)
                rows.values.append([numbers[name] for name in rows.names])
                rows.branches.append(0)

    def _axis_of(self, name: str) -> str:
        if name not in self.axes:
            fits = (axis for pattern, axis in self.axis_patterns if fnmatchcase(name, pattern))
            self.axes[name] = next(fits, "")
        return self.axes[name]


def _apply(target: dict[str, Any], record: dict[int, list[Field]]) -> None:
    """A record that says what is new and what is gone."""
    for each in record[1]:
        _put(target, by_number(as_bytes(each)))
    for each in record[2]:
        path = _path(by_number(as_bytes(each)))
        table: Any = target
        for key in path[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table.pop(path[-1], None)


def _put(target: dict[str, Any], item: dict[int, list[Field]]) -> None:
    path = _path(item)
    table = target
    for key in path[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = table[key] = {}
        table = inner
    table[path[-1]] = _value(item)


def _path(item: dict[int, list[Field]]) -> list[str]:
    return [as_text(each) for each in item[2]] or [text(item[1])]


def _value(item: dict[int, list[Field]]) -> Any:
    if item[16] or item[8]:
        return parse_json(as_bytes((item[16] or item[8])[-1]))
    if item[7]:
        return text(item[7])
    if item[6]:
        return protobuf.double(item[6][-1])
    if item[5] and isinstance(item[5][-1], int):
        return protobuf.zigzag(item[5][-1])
    return bool(item[4][-1]) if item[4] else None


def _number(value: Any) -> Any:
    """JSON has no word for these, so wandb quotes them."""
    return _NOT_NUMBERS.get(value, value) if isinstance(value, str) else value


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond what a float holds
        return float("inf") if value > 0 else float("-inf")


# ---------------------------------------------------------------------------------------- its files


def _files(
    log: _WandbLog, folders: list[Path], root: Path, warnings: list[str]
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
        found.append(ForeignFile(name=name, source=path, at_ns=at_ns, kind=kind_of(name)))
    return found, output


def _names_of(medium: _Medium) -> list[Any]:
    """Return the names of the files of a log call."""
    names = medium.about.get("filenames")
    if isinstance(names, list) and names:
        return names
    return [medium.about.get("path")]


def _medium_file(medium: _Medium, path: Path) -> ForeignFile:
    kind = str(medium.about.get("_type", ""))
    known = "image" if kind.startswith("images") else _MEDIA.get(kind, kind_of(path.name))
    source: bytes | Path = _as_csv(path) if known == "table" else path
    return ForeignFile(
        name=medium.name, source=source, at_ns=medium.at_ns, kind=known, step=medium.step
    )


def _histogram(medium: _Medium) -> ForeignFile:
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
