"""Format of the folder `metrics`: names in lines of text, and rows of one length in each file.

`names.jsonl` has lines of a CRC-32 (8 hexadecimal digits), a blank and an object of JSON. Rows
depend on them, so each is written twice, with an empty line between:

    {"format": 2}                             first of all
    {"set": 65536, "names": ["a", "b"]}       names of the values of the rows of a set; `axis` is
                                              the index of the name that is the x axis of the
                                              others, `branch` a branch that all its rows lie on
    {"rewind": 100, "attempt": 2, "place": 7} rows of before place 7 with a later step left the
                                              curve, and are branch 2
    {"end": {"2": 7}, "attempt": 2}           number of rows of each file as the attempt ended

`<n>.rows` has the rows with room for n values, all numbers little-endian:

    u32 CRC-32 of all that follows, u32 set, u64 place, i64 step, i64 unix time in ns, n f64

Each row is one write at the end of its file. Values without a name are 0. A set belongs to one
attempt: its number is that of the attempt times 65536, plus a count. The place orders rows of all
files: it is the number of the attempt times 2^40, plus a count of the calls of `log`.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from assay.core.errors import RecordError

FORMAT = 2
NAMES_FILE = "names.jsonl"
HEAD_BYTES = 32
MAX_VALUES = 1 << 14
"""Most values of a row."""
MAX_SETS = 1 << 16
"""Most sets of names of one attempt."""
PLACES = 1 << 40
"""Places of one attempt."""
MAX_COLUMNS = 250_000
"""Metrics of a record, where one counts for each set of metrics that it is logged in."""
MAX_NAMES_BYTES = 1 << 30

_ROWS_FILE = re.compile(r"([1-9][0-9]{0,4})\.rows")


@dataclass(frozen=True, slots=True)
class KeySet:
    """Metric names that are logged together.

    `axis`: index of the name that is their x axis, or None. `branch`: 0, or the branch that all of
    them lie on.
    """

    names: tuple[str, ...]
    axis: int | None = None
    branch: int = 0


@dataclass(frozen=True, slots=True)
class Rewind:
    """Resume from `step`: points before `place` with a greater step leave the curve.

    Points at `step` itself leave it too, for keys that are logged at it again, and where a name is
    in `stopped`: an evaluation measured it because the run was stopped there.
    """

    step: int
    attempt: int
    place: int
    stopped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DamagedRows:
    """Part of a file of rows that holds no intact row; `torn` at the end, cut off by a kill."""

    file: str
    begin: int
    end: int
    torn: bool = False


def rows_file(values: int) -> str:
    """Return the name of the file of rows with room for so many values."""
    return f"{values}.rows"


def values_of_file(name: str) -> int | None:
    """Return the number of values of the rows in a file of this name, None for another file."""
    found = _ROWS_FILE.fullmatch(name)
    values = int(found[1]) if found else 0
    return values if 0 < values <= MAX_VALUES else None


def row_values(names: int) -> int:
    """Return the number of values of a row for so many names: at most an eighth more.

    So there are few files, whatever is logged.

    >>> [row_values(names) for names in (1, 15, 20, 33, 10_000)]
    [1, 15, 20, 36, 10240]
    """
    unit = 1 << max(0, names.bit_length() - 4)
    return -(-names // unit) * unit


def row_bytes(values: int) -> int:
    """Return the length of a row with room for so many values."""
    return HEAD_BYTES + 8 * values


def body_of_row(names: int) -> struct.Struct:
    """Return the layout of all but the checksum of a row: set, place, step, time, values."""
    return struct.Struct(f"<IQqq{names}d{8 * (row_values(names) - names)}x")


def seal(body: bytes) -> bytes:
    """Return a whole row: its checksum, and the rest."""
    return crc32(body).to_bytes(4, "little") + body


def line_of(value: dict[str, Any]) -> bytes:
    """Return the two lines of an object, with an empty one between: no lost end joins both."""
    text = json.dumps(value, separators=(",", ":"))
    line = f"{crc32(text.encode()):08x} {text}\n".encode()
    return line + b"\n" + line


def line_of_set(number: int, keys: KeySet) -> bytes:
    """Return the two lines that define a set of names."""
    value: dict[str, Any] = {"set": number, "names": keys.names}
    if keys.axis is not None:
        value["axis"] = keys.axis
    if keys.branch:
        value["branch"] = keys.branch
    return line_of(value)


def line_of_rewind(rewind: Rewind) -> bytes:
    """Return the two lines of a rewind."""
    value: dict[str, Any] = {
        "rewind": rewind.step,
        "attempt": rewind.attempt,
        "place": rewind.place,
    }
    if rewind.stopped:
        value["stopped"] = list(rewind.stopped)
    return line_of(value)


class MetricNames:
    """Content of `names.jsonl`, which may grow between two reads.

    `ends` are the numbers of rows by number of values, at the end of an attempt.
    """

    def __init__(self, where: str) -> None:
        self.sets: dict[int, KeySet] = {}
        self.rewinds: list[Rewind] = []
        self.ends: dict[int, int] = {}
        self.damaged_lines = 0
        self._where = where
        self._columns = 0

    def add(self, data: bytes) -> int:
        """Take in whole lines, and return how many bytes they have; RecordError for a new format.

        What is not as its checksum says, or makes no sense, is passed over.
        """
        end = data.rfind(b"\n") + 1
        for line in data[: end - 1].split(b"\n") if end else ():
            if not line:
                continue
            value = _parse_line(line)
            try:
                if value is None or not self._take(value):
                    self.damaged_lines += 1
            except (KeyError, TypeError, ValueError, AttributeError):
                self.damaged_lines += 1
        return end

    def _take(self, value: dict[str, Any]) -> bool:
        """Take in an object; return False for one that this version does not know."""
        if "format" in value:
            if value["format"] != FORMAT:
                raise RecordError(
                    f"The metrics are of format {value['format']}, and this version of assay "
                    f"reads {FORMAT}.",
                    where=self._where,
                    fix="Read them with the version that wrote them.",
                )
        elif "set" in value:
            self._define(int(value["set"]), value)
        elif "rewind" in value:
            stopped = tuple(str(name) for name in value.get("stopped", ()))
            step, attempt, place = (int(value[key]) for key in ("rewind", "attempt", "place"))
            rewind = Rewind(step, attempt, place, stopped)
            if rewind not in self.rewinds:
                self.rewinds.append(rewind)
        elif "end" in value:
            self.ends |= {int(values): int(rows) for values, rows in value["end"].items()}
        else:
            return False
        return True

    def _define(self, number: int, value: dict[str, Any]) -> None:
        names = tuple(str(name) for name in value["names"])
        axis = value.get("axis")
        if not 0 < len(names) <= MAX_VALUES or not 0 <= number < 1 << 32:
            raise ValueError(number)
        keys = KeySet(
            names, axis if axis in range(len(names)) else None, int(value.get("branch", 0))
        )
        if self.sets.get(number) != keys:
            self._columns += len(names)
            check_columns(self._columns, where=self._where)
            self.sets[number] = keys


def objects_of(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of lines, each once."""
    before: dict[str, Any] | None = None
    for line in data.split(b"\n"):
        value = _parse_line(line)
        if value is not None and value != before:
            yield value
        before = value if line else before


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line, None where its checksum is another or it is none."""
    try:
        if line[:9] != b"%08x " % crc32(line[9:]):
            return None
        value = json.loads(line[9:])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def check_columns(count: int, *, where: str) -> None:
    """Raise RecordError for more metrics than a record may have."""
    if count > MAX_COLUMNS:
        raise RecordError(
            f"There are more than {MAX_COLUMNS:,} different metrics.",
            where=where,
            fix="Log the same metrics every time; a changing part belongs into the value.",
        )


def metrics_state(folder: Path) -> tuple[int, int]:
    """Return what changes when metrics are logged: size of all files, newest time of change."""
    size = newest = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                size += status.st_size
                newest = max(newest, status.st_mtime_ns)
    except OSError:
        return 0, 0
    return size, newest
