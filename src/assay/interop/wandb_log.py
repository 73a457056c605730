"""State of a wandb run, put together from the records of its log."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from zlib import crc32

from assay.formats.json_codec import parse_json
from assay.formats.metrics_file import MAX_VALUES
from assay.interop.foreign_run import block_of, ns_of
from assay.interop.nested_keys import flatten
from assay.store.series import Block

HEAD = b":W&B\xe1\xbe"
HEAD_BYTES = 7

_BLOCK_BYTES = 32768
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4  # what is between them has 3

_NOT_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_OWN_ARTIFACTS = ("run_table", "job", "wandb-history")


class DamagedLogError(ValueError):
    """Place in a log from which on it cannot be read."""


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log of LevelDB up to the first damaged one; DamagedLogError there.

    wandb's library has the messages, and no longer a reader of the frame around them.
    """
    at = HEAD_BYTES
    parts: list[bytes] = []
    while at + _CHUNK.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _CHUNK.size:
            at += left
            continue
        check, length, kind = _CHUNK.unpack_from(data, at)
        if not check and not length and not kind:  # room that was made and never used
            at += left
            continue
        body = data[at + _CHUNK.size : at + _CHUNK.size + length]
        is_first = kind in (_FULL, _FIRST)
        if length > left - _CHUNK.size or is_first == bool(parts):
            raise DamagedLogError(f"a record is damaged at byte {at}")
        if len(body) < length:
            raise DamagedLogError(f"it ends inside of a record at byte {at}")
        if crc32(data[at + 6 : at + 7] + body) != check:
            raise DamagedLogError(f"a record is damaged at byte {at}")
        parts.append(body)
        at += _CHUNK.size + length
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
    if parts or any(data[at:]):
        raise DamagedLogError(f"it ends inside of a record at byte {at}")


@dataclass(frozen=True, slots=True)
class _HistoryRow:
    """Numbers that were logged together, by an attempt of the run."""

    step: int
    at_ns: int
    attempt: int
    numbers: dict[str, float]


@dataclass(slots=True, kw_only=True)
class Medium:
    """Logged value that lies in files, or is a histogram."""

    name: str
    about: dict[str, Any]
    step: int
    at_ns: int


@dataclass(slots=True)
class WandbLog:
    """State of a run, as the records so far said."""

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
    texts: dict[str, Any] = field(default_factory=dict)
    """Logged values that are no numbers, the last of each name."""
    axes: dict[str, str] = field(default_factory=dict)
    axis_patterns: list[tuple[str, str]] = field(default_factory=list)
    rows: list[_HistoryRow] = field(default_factory=list)
    media: list[Medium] = field(default_factory=list)
    artifacts: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    start_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    runtime_s: int = 0
    exit_code: int | None = None
    attempt: int = 0
    begins: dict[int, int] = field(default_factory=dict)
    """First step that each attempt has logged."""
    logged: dict[str, list[int]] = field(default_factory=dict)
    """Attempts that logged a number under a name."""
    lasts: dict[str, float] = field(default_factory=dict)
    """Last number that was logged under each name, which the summary of an ended run has."""

    def begin_attempt(self) -> None:
        """Expect another file of the same run."""
        self.attempt += 1
        self.exit_code = None

    def add(self, record: Any) -> None:
        """Add a record of wandb; ValueError or RecursionError when its JSON cannot be read."""
        kind = record.WhichOneof("record_type")
        about = getattr(record, kind or "uuid")
        match kind:
            case "history":
                self._row(about)
            case "summary":
                _apply(self.summary, about)
            case "config":
                _apply(self.config, about)
            case "output" | "output_raw":
                self.lines.append(about.line)
            case "artifact":
                if about.type not in _OWN_ARTIFACTS and not about.type.startswith("wandb-"):
                    self.artifacts.add(about.name)
            case "metric" if about.step_metric and about.name:
                self.axes[about.name] = about.step_metric
            case "metric" if about.step_metric and about.glob_name:
                self.axis_patterns.append((about.glob_name, about.step_metric))
            case "run":
                self._run(about)
            case "exit":
                self.exit_code = about.exit_code
                self.runtime_s = max(0, about.runtime)
            case "environment":
                self._environment(about)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of each set of names; what was logged again is a branch of its own."""
        groups: dict[tuple[tuple[str, ...], str], list[tuple[_HistoryRow, int]]] = {}
        for row in self.rows:
            for names, axis, branch in self._parts(row):
                groups.setdefault((names, axis), []).append((row, branch))
        for (all_names, axis), members in groups.items():
            for first in range(0, len(all_names), MAX_VALUES):
                names = all_names[first : first + MAX_VALUES]
                yield block_of(
                    names,
                    [row.step for row, _ in members],
                    [row.at_ns for row, _ in members],
                    [[row.numbers[name] for row, _ in members] for name in names],
                    axis=names.index(axis) if axis in names else None,
                    branches=[branch for _, branch in members],
                )

    def _parts(self, row: _HistoryRow) -> list[tuple[tuple[str, ...], str, int]]:
        """Split the names of a row by their x axis and by the branch that they are on."""
        parts: dict[tuple[str, int], list[str]] = {}
        axes = {name: self._axis_of(name) for name in row.numbers}
        used = {axis for name, axis in axes.items() if axis in row.numbers and axis != name}
        for name in sorted(row.numbers):  # the writer has them in any order
            if name in used:  # its own points once, as the axis of the others
                continue
            axis = axes[name] if axes[name] in used else ""
            parts.setdefault((axis, self._branch_of(name, row)), []).append(name)
        return [
            (tuple(sorted([*names, axis]) if axis else names), axis, branch)
            for (axis, branch), names in parts.items()
        ]

    def _branch_of(self, name: str, row: _HistoryRow) -> int:
        """Return the attempt that logged a name again from before this row on; 0 if none did.

        Only what is logged again is left: a run that is resumed offline begins at step 0 again,
        perhaps with a test alone.
        """
        again = (each for each in self.logged[name] if each > row.attempt)
        return next((each for each in again if row.step >= self.begins[each]), 0)

    def results(self) -> Iterator[tuple[str, Any]]:
        """Yield results: summary values that end no curve, and logged values that are no number.

        A number that a program put into the summary in the place of a curve's last one is
        `summary/NAME`.
        """
        logged = self.texts | dict(flatten(self.summary))
        for name, value in logged.items():
            if name.startswith("_") or isinstance(value, dict):
                continue
            known = _number(value)
            if name not in self.lasts:
                yield name, known
            elif self.exit_code is not None and isinstance(known, int | float):
                last, number = self.lasts[name], _float(known)
                if last != number and (last == last or number == number):
                    yield f"summary/{name}", known

    def _run(self, about: Any) -> None:
        self.run_id = about.run_id
        self.name = about.display_name or self.name
        self.notes = about.notes or self.notes
        self.host = about.host
        self.labels = list(dict.fromkeys([*self.labels, *about.tags]))
        belongs = {
            "entity": about.entity,
            "project": about.project,
            "group": about.run_group,
            "job_type": about.job_type,
            "sweep": about.sweep_id,
        }
        self.about = {key: value or self.about.get(key, "") for key, value in belongs.items()}
        start_ns = about.start_time.seconds * 1_000_000_000 + about.start_time.nanos
        self.start_ns = self.start_ns or max(0, start_ns)
        self.git_commit = about.git.commit
        self.python = about.telemetry.python_version
        _apply(self.config, about.config)
        _apply(self.summary, about.summary)

    def _environment(self, about: Any) -> None:
        if about.program:
            self.command = [about.program, *about.args]
        self.host = about.host or self.host
        self.user = about.username
        self.python = about.python or self.python
        self.git_commit = about.git.commit or self.git_commit

    def _row(self, about: Any) -> None:
        row: dict[str, Any] = {}
        for item in about.item:
            _put(row, item)
        step = row["_step"] if isinstance(row.get("_step"), int) else about.step.num
        at_ns = self.last_ns
        if isinstance(row.get("_timestamp"), int | float):
            at_ns = ns_of(row["_timestamp"])
        self.first_ns = self.first_ns or at_ns
        self.last_ns = max(self.last_ns, at_ns)
        numbers: dict[str, float] = {}
        for name, value in flatten(row):
            if name.startswith("_"):
                continue
            value = _number(value)
            if isinstance(value, int | float):
                numbers[name] = _float(value)
            elif isinstance(value, dict):
                self.media.append(Medium(name=name, about=value, step=step, at_ns=at_ns))
            elif value is not None:
                self.texts[name] = value
        self.begins.setdefault(self.attempt, step)
        for name in numbers:
            attempts = self.logged.setdefault(name, [])
            if self.attempt not in attempts[-1:]:
                attempts.append(self.attempt)
        self.lasts |= numbers
        if numbers:
            self.rows.append(_HistoryRow(step, at_ns, self.attempt, numbers))

    def _axis_of(self, name: str) -> str:
        if name not in self.axes:
            fits = (axis for pattern, axis in self.axis_patterns if fnmatchcase(name, pattern))
            self.axes[name] = next(fits, "")
        return self.axes[name]


def _apply(target: dict[str, Any], record: Any) -> None:
    """A record that says what is new and what is gone."""
    for item in record.update:
        _put(target, item)
    for item in record.remove:
        path = _path(item)
        table: Any = target
        for key in path[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table.pop(path[-1], None)


def _put(target: dict[str, Any], item: Any) -> None:
    path = _path(item)
    table = target
    for key in path[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = table[key] = {}
        table = inner
    table[path[-1]] = _value(item)


def _path(item: Any) -> Sequence[str]:
    return list(item.nested_key) or [item.key]


def _value(item: Any) -> Any:
    if item.value_json:
        return parse_json(item.value_json)
    kind = item.WhichOneof("value") if "value" in item.DESCRIPTOR.oneofs_by_name else None
    if kind in (None, "none"):
        return None
    return parse_json(item.json) if kind == "json" else getattr(item, kind)


def _number(value: Any) -> Any:
    """JSON has no word for these, so wandb quotes them."""
    return _NOT_NUMBERS.get(value, value) if isinstance(value, str) else value


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond what a float holds
        return float("inf") if value > 0 else float("-inf")
