"""The list of all runs of a project, quickly: a SQLite cache that may be deleted at any time.

The run folders are the truth. What runs are asked for (metrics, keys of their configs, words) lies
in tables of its own, so that a question reads no folder at all. `store.refresh_index` brings the
cache up to date.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.store.cells import from_cell
from assay.store.conditions import Condition, Sql
from assay.store.index_database import names_in, open_database, write_runs
from assay.store.index_rows import ChangedRun, IndexRow, Kind, storable
from assay.store.layout import Project, RunFolder
from assay.store.migrations import NewerIndexError
from assay.store.read_record import read_record

_ASKED_BUSY_S = 10.0


@dataclass(slots=True)
class Index:
    """Runs of a project as they are now, the oldest first, and answers to questions about them."""

    project: Project
    rows: list[IndexRow]
    _file: Path
    # What could not be written into the file, which is then asked in memory.
    _unwritten: list[ChangedRun] = field(default_factory=list)
    _gone: list[str] = field(default_factory=list)

    def matching(
        self, condition: Condition, *, now_ns: int, states: Mapping[str, tuple[str, float]]
    ) -> set[str]:
        """Return the folders that fulfil a condition. `states`: status and seconds of open runs."""
        sql = Sql(condition)
        asked = {**sql.parameters, "now_ns": now_ns, "project": str(self.project.root)}
        parameters = dict(zip(asked, storable(asked.values()), strict=True))
        with self.asked() as database:
            database.execute("CREATE TEMP TABLE now (folder PRIMARY KEY, status, seconds)")
            now = (storable((folder, *state)) for folder, state in states.items())
            database.executemany("INSERT INTO now VALUES (?, ?, ?)", now)
            query = (
                "SELECT runs.folder FROM runs LEFT JOIN now ON now.folder = runs.folder WHERE "
                f"{sql.where}"
            )
            return {folder for (folder,) in database.execute(query, parameters)}

    def metric_names(self) -> list[str]:
        """Return every metric that any run has."""
        with self.asked() as database:
            return [name for (name,) in database.execute(names_in("metrics"))]

    def item_names(self, kind: Kind) -> list[str]:
        """Return every name that any run has something of this kind under."""
        with self.asked() as database:
            return [
                name
                for (name,) in database.execute(names_in("items", "kind = :kind"), {"kind": kind})
            ]

    def items(self, kind: Kind, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By folder, what each run has under these names; None values are left out."""
        found: dict[str, dict[str, Any]] = {}
        with self.asked() as database:
            for name in names:
                query = (
                    "SELECT folder, value FROM items WHERE kind = ? AND name = ? AND value IS NOT "
                    "NULL"
                )
                for folder, value in database.execute(query, (kind, name)):
                    found.setdefault(folder, {})[name] = from_cell(value)
        return found

    def all_items(self, kind: Kind, folders: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By folder, everything of a kind that these runs have."""
        found: dict[str, dict[str, Any]] = {folder: {} for folder in folders}
        with self.asked() as database:
            database.execute("CREATE TEMP TABLE wanted (folder PRIMARY KEY)")
            database.executemany("INSERT INTO wanted VALUES (?)", [(each,) for each in found])
            # CROSS: looks up the wanted runs. Left to itself SQLite reads every run of each name.
            query = (
                "SELECT folder, value FROM wanted CROSS JOIN items USING (folder) "
                "WHERE kind = ? AND name = ?"
            )
            names = database.execute(names_in("items", "kind = :kind"), {"kind": kind})
            for (name,) in names.fetchall():
                for folder, value in database.execute(query, (kind, name)):
                    found[folder][name] = from_cell(value)
        return found

    @contextlib.contextmanager
    def asked(self) -> Iterator[sqlite3.Connection]:
        """Open the file, if it holds what `rows` say; else the same in memory."""
        with contextlib.ExitStack() as stack:
            database = None if self._unwritten or self._gone else self._opened(stack)
            if database is None:
                database = stack.enter_context(
                    contextlib.closing(sqlite3.connect(":memory:", isolation_level=None))
                )
                self._fill(database)
            database.create_function(
                "folded",
                1,
                lambda cell: None if cell is None else str(from_cell(cell)).casefold(),
            )
            yield database

    def _opened(self, stack: contextlib.ExitStack) -> sqlite3.Connection | None:
        """The file, or None when it is gone, locked or damaged since it was written."""
        try:
            database = stack.enter_context(
                open_database(self._file, make=False, busy_s=_ASKED_BUSY_S)
            )
            database.execute("SELECT folder FROM texts LIMIT 1").fetchone()
        except (sqlite3.Error, NewerIndexError):
            return None
        return database

    def _fill(self, database: sqlite3.Connection) -> None:
        """Fill a database from the file and `_unwritten`; without a file, from the folders."""
        changed = self._unwritten
        try:
            with open_database(self._file, make=False) as old:
                old.execute("SELECT folder FROM texts LIMIT 1").fetchone()
                old.backup(database)
        except (sqlite3.Error, NewerIndexError):
            if len(changed) == len(self.rows) and all(each.items is not None for each in changed):
                write_runs(database, changed, [])  # just read, all of them
                return
            folders = [RunFolder(self.project.runs_dir / row.folder) for row in self.rows]
            changed = [read_record(folder, 0) for folder in folders if folder.path.is_dir()]
        write_runs(database, changed, self._gone)
