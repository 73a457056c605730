"""Result tables of a project: `.assay/tables/NAME.toml`, with `NAME.history.jsonl` of changes.

A cell is a text, or a link to a value of runs. Both files are plain, so that they can be read,
merged and committed.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import tomli_w

from assay.core.errors import InputError, RecordError
from assay.core.formatting import size
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import dataclass_from, to_plain, write_atomic
from assay.store.layout import Project, refusal, shared_folder

FORMAT = 1
MAX_BYTES = 16 << 20
MAX_HISTORY_BYTES = 256 << 20
Best = Literal["", "max", "min"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_HEAD = (
    "# A result table: `assay table show {name}` and its page in `assay ui` show it. Its history "
    "lies beside it.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A value of runs: of those in `runs`, or of all that `where` is true for.

    `value` is a column of the list of runs (`valid/acc.max`, `optimizer.lr`, `best`). Of several
    runs it is mean and deviation. `seen` is what it was when somebody last looked: a number, a
    text, or mean, std and count.
    """

    value: str
    runs: tuple[str, ...] = ()
    where: str = ""
    seen: Any = None


Cell = str | Link


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column. `best` says which numbers in it are good."""

    key: str
    title: str
    best: Best = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row; a cell that is not there is empty."""

    key: str
    cells: Mapping[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """A table as its file has it."""

    name: str
    title: str = ""
    notes: str = ""
    columns: tuple[TableColumn, ...] = ()
    rows: tuple[TableRow, ...] = ()

    def row(self, key: str) -> TableRow | None:
        return next((row for row in self.rows if row.key == key), None)

    def column(self, key: str) -> TableColumn | None:
        return next((column for column in self.columns if column.key == key), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEdit:
    """One change of a table: what of it, where, from what, to what, by whom, when."""

    what: str
    row: str = ""
    column: str = ""
    old: Any = None
    new: Any = None
    who: str = ""
    at_ns: int = 0


def check_table_name(name: str) -> str:
    """Return the name of a table or a view if a file may have it; else InputError."""
    if not _NAME.fullmatch(name):
        fix = "letters, digits, - and _, at most 64, the first one a letter or a digit"
        raise InputError(f"`{name[:80]}` cannot be the name of a table.", fix=fix)
    return name


def tables_dir(project: Project) -> Path:
    return project.assay_dir / "tables"


def table_file(project: Project, name: str) -> Path:
    return tables_dir(project) / f"{check_table_name(name)}.toml"


def history_file(project: Project, name: str) -> Path:
    return tables_dir(project) / f"{check_table_name(name)}.history.jsonl"


def table_names(project: Project) -> list[str]:
    """Return the names of all tables, in the order of the alphabet."""
    try:
        files = [
            entry.name
            for entry in os.scandir(tables_dir(project))
            if entry.is_file(follow_symlinks=False)
        ]
    except OSError:
        return []
    names = (name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    return sorted(name for name in names if _NAME.fullmatch(name))


def read_table(project: Project, name: str) -> ResultTable:
    """Return a table. FileNotFoundError when there is none, RecordError when it is damaged."""
    path = table_file(project, name)
    try:
        data = read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecordError(
            f"The table cannot be read: {error.strerror or error}.", where=str(path)
        ) from error
    return parse_table(name, data, where=str(path))


def table_revision(project: Project, name: str) -> str:
    """Return a digest of the table's file; FileNotFoundError when there is none."""
    # Not its time, which two edits within a tick of the kernel share.
    return blake2b(read_bytes(table_file(project, name), MAX_BYTES), digest_size=16).hexdigest()


def parse_table(name: str, data: bytes, *, where: str) -> ResultTable:
    """Return the table in the bytes of a file; RecordError that says what is wrong with it."""
    try:
        found = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"The table {name} is no TOML: {error}", where=where) from error
    written = found.pop("format", FORMAT)
    if not isinstance(written, int) or written > FORMAT:
        raise RecordError(
            f"The table {name} has format {written!r}; this assay knows {FORMAT}.", where=where
        )
    rows = found.get("rows", [])
    for row in rows if isinstance(rows, list) else []:
        cells = row.get("cells", {}) if isinstance(row, dict) else {}
        for key, cell in cells.items() if isinstance(cells, dict) else ():
            if isinstance(cell, int | float) and not isinstance(cell, bool):
                cells[key] = repr(cell)  # written by hand, without quotes
    table = dataclass_from(ResultTable, {**found, "name": name}, where=f"the table {name}")
    _check(table, where)
    return table


def write_table(project: Project, table: ResultTable) -> None:
    """Replace the file of a table. InputError or RecordError when it cannot be written."""
    path = shared_folder(project, "tables") / f"{check_table_name(table.name)}.toml"
    _check(table, str(path))
    data = {"format": FORMAT, **_without_nothing(to_plain(table))}
    data.pop("name")
    text = _HEAD.format(name=table.name) + tomli_w.dumps(data)
    written = text.encode("utf-8", "replace")
    if len(written) > MAX_BYTES:
        what = f"The table would have {size(len(written))}; at most {size(MAX_BYTES)} are"
        raise InputError(f"{what} read.", where=str(path), fix="make two tables of it")
    try:
        write_atomic(path, written, durable=False)
    except OSError as error:
        raise refusal(error, path, "The table cannot be written") from error


def read_history(project: Project, name: str) -> Iterator[TableEdit]:
    """Yield the changes of a table in order; unreadable lines are passed over."""
    try:
        lines = read_bytes(history_file(project, name), MAX_HISTORY_BYTES).split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            yield dataclass_from(TableEdit, json.loads(line))
        except (ValueError, RecordError, RecursionError):
            continue


def _check(table: ResultTable, where: str) -> None:
    for what, keys in (
        ("columns", [each.key for each in table.columns]),
        ("rows", [each.key for each in table.rows]),
    ):
        if len(set(keys)) < len(keys):
            ((twice, _),) = Counter(keys).most_common(1)
            raise RecordError(
                f"Two {what} of the table {table.name} have the key {twice!r}.", where=where
            )


def _without_nothing(value: Any) -> Any:
    """Return data without None, which TOML has not, and without what is empty anyway."""
    if isinstance(value, Mapping):
        return {
            key: _without_nothing(item)
            for key, item in value.items()
            if item not in (None, "", [], {}, ())
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nothing(item) for item in value]
    return value
