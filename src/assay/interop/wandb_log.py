"""State of a wandb run, put together from the records of its log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from assay.formats.json_codec import parse_json
from assay.formats.metrics_file import MAX_VALUES
from assay.interop import protobuf
from assay.interop.foreign_run import block_of, ns_of
from assay.interop.nested_keys import flatten
from assay.interop.protobuf import (
    Field,
    ProtobufError,
    as_text,
    by_number,
    part,
    part_bytes,
    text,
    whole,
)
from assay.store.series import Block

"""Rows of more names are kept as several."""

_NOT_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_READ = {3, 4, 5, 8, 12, 13, 17, 18, 26}
"""Numbers of the parts of a record that are read, next to the rows: 2."""

_OWN_ARTIFACTS = ("run_table", "job", "wandb-history")


@dataclass(slots=True)
class _HistoryRows:
    """Rows of one set of names. `axis`: which of them is the x axis of the others."""

    names: tuple[str, ...]
    axis: str
    steps: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)

    def add(self, step: int, at_ns: int, numbers: dict[str, float], branch: int = 0) -> None:
        """Add the values of its names out of `numbers`."""
        self.steps.append(step)
        self.times_ns.append(at_ns)
        self.values.append([numbers[name] for name in self.names])
        self.branches.append(branch)

    def sort(self) -> None:
        """Put the rows in order of time, those of equal times as they are."""
        self._select(sorted(range(len(self.steps)), key=self.times_ns.__getitem__))

    def take(self, places: Collection[int]) -> list[tuple[int, int, dict[str, float]]]:
        """Remove the rows at these places; return step, time and values of each."""
        taken = [
            (self.steps[i], self.times_ns[i], dict(zip(self.names, self.values[i], strict=True)))
            for i in sorted(places)
        ]
        self._select([i for i in range(len(self.steps)) if i not in places])
        return taken

    def _select(self, places: Iterable[int]) -> None:
        rows = list(zip(self.steps, self.times_ns, self.values, self.branches, strict=True))
        kept = [rows[i] for i in places]
        self.steps = [step for step, *_ in kept]
        self.times_ns = [at_ns for _, at_ns, *_ in kept]
        self.values = [values for *_, values, _ in kept]
        self.branches = [branch for *_, branch in kept]


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
    media: list[Medium] = field(default_factory=list)
    artifacts: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    start_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    runtime_s: int = 0
    exit_code: int | None = None
    attempt: int = 0
    first_step: int | None = None
    """First step that the attempt has logged; None before."""
    seen: set[str] = field(default_factory=set)
    """Names of the numbers that the attempt has logged."""
    lasts: dict[str, float] = field(default_factory=dict)
    """Last number that was logged under each name, which the summary of an ended run has."""

    def begin_attempt(self) -> None:
        """Expect another file of the same run."""
        self.attempt += 1
        self.first_step = None
        self.seen.clear()
        self.exit_code = None

    def add_or_pass(self, record: bytes) -> None:
        """Add a record, or leave it out when it is malformed."""
        try:
            self.add(record)
        except (ProtobufError, ValueError, RecursionError):
            return

    def add(self, record: bytes) -> None:
        """Add a record; ProtobufError, ValueError or RecursionError when it cannot be read."""
        for number, value in protobuf.fields(record):
            if number == 2:
                self._row(part_bytes(value))
            elif number in _READ:
                self._add_part(number, by_number(part_bytes(value)))

    def _add_part(self, number: int, about: dict[int, list[Field]]) -> None:
        match number:
            case 3:
                _apply(self.summary, about)
            case 4 | 13:
                self.lines.append(text(about[3]))
            case 5:
                _apply(self.config, about)
            case 8:
                kind = text(about[4])
                if kind not in _OWN_ARTIFACTS and not kind.startswith("wandb-"):
                    self.artifacts.add(text(about[5]))
            case 12:
                self._metric(about)
            case 17:
                self._run(about)
            case 18:
                self.exit_code = whole(about[1])
                self.runtime_s = max(0, whole(about[2]))
            case 26:
                self._environment(about)

    def blocks(self) -> Iterator[Block]:
        for rows in self.rows.values():
            columns = list(zip(*rows.values, strict=True))
            for first in range(0, len(rows.names), MAX_VALUES):
                names = rows.names[first : first + MAX_VALUES]
                yield block_of(
                    names,
                    rows.steps,
                    rows.times_ns,
                    columns[first : first + MAX_VALUES],
                    axis=names.index(rows.axis) if rows.axis in names else None,
                    branches=rows.branches,
                )

    def results(self) -> Iterator[tuple[str, Any]]:
        """Yield results: summary values that end no curve, and logged values that are no number.

        A number that a program put into the summary in the place of a curve's last one is
        `summary/NAME`.
        """
        logged = self.said | dict(flatten(self.summary))
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

    def _run(self, about: dict[int, list[Field]]) -> None:
        self.run = True
        self.run_id = text(about[1])
        self.name = text(about[8]) or self.name
        self.notes = text(about[9]) or self.notes
        self.host = text(about[13]) or self.host
        labels = [*self.labels, *map(as_text, about[10])]
        self.labels = list(dict.fromkeys(labels))
        names = {"entity": 2, "project": 3, "group": 6, "job_type": 7, "sweep": 12}
        self.about = {
            name: text(about[number]) or self.about.get(name, "") for name, number in names.items()
        }
        start = part(about[17])
        start_ns = whole(start[1]) * 1_000_000_000 + whole(start[2])
        self.start_ns = self.start_ns or max(0, start_ns)
        git = part(about[21])
        self.git_commit = text(git[2])
        settings = part(about[19])
        self.python = text(settings[4])
        _apply(self.config, part(about[4]))
        _apply(self.summary, part(about[5]))

    def _environment(self, about: dict[int, list[Field]]) -> None:
        program = text(about[6])
        if program:
            self.command = [program, *map(as_text, about[5])]
        self.host = text(about[12]) or self.host
        self.user = text(about[13])
        self.python = text(about[2]) or self.python
        git = part(about[9])
        self.git_commit = text(git[2]) or self.git_commit

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
                _put(row, by_number(part_bytes(value)))
            elif number == 2:
                step = whole(by_number(part_bytes(value))[1])
        if isinstance(row.get("_step"), int):
            step = row["_step"]
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
                self.said[name] = value
        if self.first_step is None:
            self.first_step = step
        if self.attempt > 1 and (again := numbers.keys() - self.seen):
            self._leave(again, self.first_step)
        self.seen |= numbers.keys()
        self.lasts |= numbers
        self._keep(numbers, step, at_ns)

    def _leave(self, names: set[str], step: int) -> None:
        """Leave the numbers of these names that earlier attempts logged from this step on.

        What else stands in their rows stays: a run that is resumed offline begins at step 0 again,
        perhaps with a test alone.
        """
        for rows in list(self.rows.values()):
            again = names.intersection(rows.names) - {rows.axis}
            late = {
                i
                for i, each in enumerate(rows.steps if again else ())
                if each >= step and not rows.branches[i]
            }
            axis = {rows.axis}.intersection(rows.names)
            others = set(rows.names) - again - axis
            if not others:
                for i in late:
                    rows.branches[i] = self.attempt
                continue
            if not late:
                continue
            parts = [
                (self._rows_of(names | axis, rows.axis), branch)
                for names, branch in ((again, self.attempt), (others, 0))
            ]
            taken = rows.take(late)
            for target, branch in parts:
                for at, at_ns, numbers in taken:
                    target.add(at, at_ns, numbers, branch)
                target.sort()
            if not rows.steps:
                del self.rows[rows.names, rows.axis]

    def _rows_of(self, names: Iterable[str], axis: str) -> _HistoryRows:
        key = tuple(sorted(names)), axis  # the writer has them in any order
        if key not in self.rows:
            self.rows[key] = _HistoryRows(*key)
        return self.rows[key]

    def _keep(self, numbers: dict[str, float], step: int, at_ns: int) -> None:
        """The numbers of one row, those with an x axis of their own together with it."""
        by_axis: dict[str, list[str]] = {}
        for name in numbers:
            axis = self._axis_of(name)
            has_axis = axis in numbers and axis != name
            by_axis.setdefault(axis if has_axis else "", []).append(name)
        plain = by_axis.pop("", [])
        for axis, names in by_axis.items():
            if axis in plain:  # its own points once
                plain.remove(axis)
                names.insert(0, axis)
        for axis, names in [("", plain), *by_axis.items()]:
            if not names:
                continue
            self._rows_of(names, axis).add(step, at_ns, numbers)

    def _axis_of(self, name: str) -> str:
        if name not in self.axes:
            fits = (axis for pattern, axis in self.axis_patterns if fnmatchcase(name, pattern))
            self.axes[name] = next(fits, "")
        return self.axes[name]


def _apply(target: dict[str, Any], record: dict[int, list[Field]]) -> None:
    """A record that says what is new and what is gone."""
    for each in record[1]:
        _put(target, by_number(part_bytes(each)))
    for each in record[2]:
        path = _path(by_number(part_bytes(each)))
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
        return parse_json(part_bytes((item[16] or item[8])[-1]))
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
