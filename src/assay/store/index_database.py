"""SQLite file of the index: its schema, opening it, what it remembers, and writing runs into it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from platformdirs import user_cache_path

from assay.core.directory import PRIVATE, create_file, make_directory
from assay.store.cells import to_cell
from assay.store.index_rows import ChangedRun, Grown, IndexedState, IndexRow, Item, Kind, storable
from assay.store.layout import Project

_BUSY_S = 2.0
_COLUMNS = IndexRow._fields
_REPLACE = (
    f"INSERT OR REPLACE INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
)


def index_file(project: Project) -> Path:
    """Return the index file of a project: one in the user's cache for each host and version."""
    name = f"{socket.gethostname()}\0{os.path.realpath(project.runs_dir)}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    folder = user_cache_path("assay", appauthor=False) / "index"
    return folder / f"{digest}-{_VERSION}.sqlite"


def select_names(table: str, where: str = "1") -> str:
    """Return SQL for the distinct names of a table whose key begins with the name.

    SELECT DISTINCT reads every entry of the key; this jumps from name to name, and there are few of
    them.
    """
    next_name = f"SELECT min(name) FROM {table} WHERE {where} AND name > names.name"
    first = f"SELECT min(name) AS name FROM {table} WHERE {where}"
    steps = f"{first} UNION ALL SELECT ({next_name}) FROM names WHERE names.name IS NOT NULL"
    return f"WITH RECURSIVE names(name) AS ({steps}) SELECT name FROM names WHERE name IS NOT NULL"


def read_states(path: Path, only: Collection[str] | None) -> list[IndexedState]:
    """Return what the file remembers of the runs, or of those in `only`; nothing without a file.

    A damaged file is deleted. Raises sqlite3.Error for one that is locked or cannot be read.
    """
    try:
        return _read_states(path, only)
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            delete_file(path)
        elif path.exists():
            raise
        return []


def _read_states(path: Path, only: Collection[str] | None) -> list[IndexedState]:
    query = f"SELECT {', '.join(IndexedState._fields)} FROM runs"
    with open_database(path, make=False) as database:
        if only is None:
            return list(map(IndexedState._make, database.execute(query)))
        query += " WHERE folder = ?"
        rows = (database.execute(query, storable((folder,))).fetchone() for folder in only)
        return [IndexedState._make(row) for row in rows if row is not None]


def is_damage(error: sqlite3.Error) -> bool:
    """Return True if a file is no database, or not one of ours."""
    return error.sqlite_errorcode & 0xFF in (
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
    )


def read_readme_times(path: Path) -> dict[str, int]:
    """Return when the README of each run was last changed, by folder, as far as that is known."""
    try:
        with open_database(path, make=False) as database:
            return dict(database.execute("SELECT folder, readme_mtime_ns FROM texts"))
    except sqlite3.Error:
        return {}


def update(path: Path, changed: Sequence[ChangedRun | Grown], gone: Sequence[str]) -> None:
    make_directory(path.parent, PRIVATE)
    with contextlib.suppress(FileExistsError):
        os.close(create_file(path))  # as open as its folder, which SQLite does not see to
    with open_database(path, make=True) as database:
        # Readers are locked out from the first page that is written: that is to be the commit.
        database.execute("PRAGMA cache_spill = OFF")
        write_runs(database, changed, gone)


def write_runs(
    database: sqlite3.Connection, found: Sequence[ChangedRun | Grown], gone: Sequence[str]
) -> None:
    """Write runs in one transaction, and delete those that are `gone`."""
    # IMMEDIATE: a transaction that reads first and then wants to write is refused at once when
    # others write.
    database.execute("BEGIN IMMEDIATE")
    _create_tables(database)
    gone_folders = [(name,) for name in gone]
    for table in ("runs", "metrics", "texts"):
        database.executemany(f"DELETE FROM {table} WHERE folder = ?", gone_folders)
    _delete_items(database, gone)
    changed = [each for each in found if isinstance(each, ChangedRun)]
    changed.sort(key=lambda each: each.row.folder)  # pages that are filled in order are full
    grown = [each for each in found if isinstance(each, Grown)]
    known = [each.row.folder for each in changed if _is_known(database, each.row.folder)]
    database.executemany(_REPLACE, [storable(each.row) for each in changed])
    database.executemany(
        "UPDATE runs SET summaries_json = ?, step = ?, metrics_mtime_ns = ? WHERE folder = ?",
        [
            storable((each.summaries_json, each.step, each.metrics_mtime_ns, each.folder))
            for each in grown
        ],
    )
    summaries = [(each.row.folder, each.row.summaries_json) for each in changed]
    summaries += [(each.folder, each.summaries_json) for each in grown]
    with_metrics = [(folder,) for folder, _ in summaries]
    database.executemany("DELETE FROM metrics WHERE folder = ?", with_metrics)
    metrics = [
        storable(_metric(folder, name, summary))
        for folder, text in summaries
        for name, summary in json.loads(text).items()
    ]
    database.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?)", metrics)
    read = [(each, each.items) for each in changed if each.items is not None]
    _write_items(database, {each.row.folder: items for each, items in read}, known)
    texts = [storable((each.row.folder, each.text, each.readme_mtime_ns)) for each, _ in read]
    database.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", texts)
    database.execute("COMMIT")


def _write_items(
    database: sqlite3.Connection, items: Mapping[str, Sequence[Item]], known: Sequence[str]
) -> None:
    """Write the items of runs by folder, in place of what the `known` of them had."""
    _delete_items(database, [folder for folder in known if folder in items])
    # In the order of the key: rows of one page are then written one after another.
    by_key: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for folder in sorted(items):
        (stored,) = storable((folder,))
        for item in items[folder]:
            row = (item.kind, item.name, stored, item.value)
            by_key.setdefault((item.kind, item.name), []).append(row)
    rows = chain.from_iterable(by_key[key] for key in sorted(by_key))
    database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", rows)


def _delete_items(database: sqlite3.Connection, folders: Sequence[str]) -> None:
    if not folders:
        return
    # By name: an index by folder would take as long to write as the items themselves, and most
    # runs are written once.
    names = [
        (kind, name)
        for kind in get_args(Kind)
        for (name,) in database.execute(select_names("items", "kind = :kind"), {"kind": kind})
    ]
    database.executemany(
        "DELETE FROM items WHERE kind = ? AND name = ? AND folder = ?",
        ((*each, *storable((folder,))) for folder in folders for each in names),
    )


def _is_known(database: sqlite3.Connection, folder: str) -> bool:
    query = "SELECT 1 FROM runs WHERE folder = ?"
    return database.execute(query, storable((folder,))).fetchone() is not None


def _metric(folder: str, name: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
    # Infinities and nan are texts in JSON.
    numbers = (to_cell(float(data[key])) for key in ("last", "min", "max", "mean"))
    return (name, folder, *numbers, data["count"])


@contextlib.contextmanager
def open_database(
    path: Path, *, make: bool, busy_s: float | None = None
) -> Iterator[sqlite3.Connection]:
    """Open the file as a database."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if make else 'ro'}"
    with contextlib.closing(
        sqlite3.connect(
            uri, uri=True, timeout=_BUSY_S if busy_s is None else busy_s, isolation_level=None
        )
    ) as database:
        # A cache need not survive power loss; what is torn then is found to be so, and made anew.
        database.execute("PRAGMA synchronous = OFF")
        yield database


def delete_file(path: Path) -> None:
    for each in (path, path.with_name(path.name + "-journal")):
        with contextlib.suppress(OSError):
            each.unlink()


_SCHEMA = (
    f"CREATE TABLE runs ({', '.join(_COLUMNS)}, PRIMARY KEY (folder)) WITHOUT ROWID",
    # The newest runs of many. With `kind` it answers for training runs without a look at rows.
    "CREATE INDEX runs_by_start ON runs (created_ns, folder, kind)",
    "CREATE TABLE metrics (name, folder, last, min, max, mean, count,"
    " PRIMARY KEY (name, folder)) WITHOUT ROWID",
    "CREATE INDEX metrics_of_run ON metrics (folder)",
    # kind: of `Item`; name: the dotted key, the name, the label, or nothing.
    "CREATE TABLE items (kind, name, folder, value, PRIMARY KEY (kind, name, folder))"
    " WITHOUT ROWID",
    "CREATE INDEX labels_of_run ON items (folder, name) WHERE kind = 'label'",
    "CREATE TABLE texts (folder, text, readme_mtime_ns, PRIMARY KEY (folder)) WITHOUT ROWID",
)
_VERSION = 8
"""Number of the schema and of how values are held: grows with every change of either."""


def _create_tables(database: sqlite3.Connection) -> None:
    """Make the tables of an empty database, inside the transaction that is open."""
    if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
        for statement in _SCHEMA:
            database.execute(statement)
