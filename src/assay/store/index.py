"""The list of all runs of a project, quickly: a SQLite cache that may be deleted at any time.

The run folders are the truth. What runs are asked for (metrics, keys of their configs, words) lies
in tables of its own, so that a question reads no folder at all. `store.refresh_index` brings the
cache up to date.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from assay.core.errors import InputError, RecordError
from assay.store.cells import compare_cells, fold_cell, from_cell, is_among, local_day
from assay.store.conditions import RUN_COLUMNS, STATISTICS, Condition, Field, Sql, kinds_of
from assay.store.index_database import (
    delete_file,
    index_file,
    is_damage,
    open_database,
    select_names,
)
from assay.store.index_rows import IndexRow, Kind, storable
from assay.store.layout import Project, RunFolder
from assay.store.refresh_index import IndexFileError, Synchronized, delete_index, synchronize

States = Mapping[str, tuple[str, float | None]]
"""Status and seconds of the runs that wrote no end, by folder."""

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")

_BUSY_S = 10.0
_FEW = 500
_FUNCTIONS: Sequence[tuple[str, int, Callable[..., Any]]] = (
    ("folded", 1, fold_cell),
    ("compare_cells", 3, compare_cells),
    ("is_among", 2, is_among),
    ("local_day", 1, local_day),
)
_NOW = "LEFT JOIN now ON now.folder = runs.folder"
_ROW = ", ".join(f"runs.{name}" for name in IndexRow._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Time at which runs are asked for, and the states of open runs at that time."""

    now_ns: int
    states: States


_NEVER = Moment(now_ns=0, states={})
"""Moment for questions without a condition, whose answer does not depend on it."""


def _renew_damaged(
    question: Callable[Concatenate[Index, _Arguments], _Answer],
) -> Callable[Concatenate[Index, _Arguments], _Answer]:
    """Let a question be asked again of a new file, where the file turns out to be damaged."""

    @wraps(question)
    def ask(self: Index, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        try:
            return question(self, *args, **kwargs)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.renew()
            return question(self, *args, **kwargs)

    return ask


class Index:
    """Index of one project: its file, and answers of it for any thread about runs by folder."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._file = index_file(project)
        self._lock = threading.RLock()
        self._delete_scratch: Callable[[], object] = lambda: None

    def close(self) -> None:
        """Delete the index if it lies in a folder of this process."""
        self._delete_scratch()

    def synchronize(
        self,
        only: Collection[str] | None = None,
        *,
        texts: bool = False,
        summarize: Callable[[RunFolder], str] | None = None,
        on_read: Callable[[int, int], object] | None = None,
    ) -> Synchronized:
        """Scan run folders, all or those in `only`, and write the new and changed runs.

        A file that cannot be written costs time and nothing else: the index is then made for this
        process alone. `texts` also looks for edited READMEs; for the others see
        `store.refresh_index.synchronize`.
        """
        with self._lock:
            try:
                return synchronize(
                    self.project,
                    self._file,
                    only=only,
                    texts=texts,
                    summarize=summarize,
                    on_read=on_read,
                )
            except IndexFileError:
                with _explain_full_disk(self._file):
                    self._move_to_scratch()
                    return synchronize(
                        self.project, self._file, texts=texts, summarize=summarize, on_read=on_read
                    )

    def newest(self, count: int) -> list[str]:
        """Return the folders of the newest training runs, the newest first, as they are now."""
        self.synchronize()
        return self.select(None, _NEVER, tests=False, limit=count)

    def renew(self) -> None:
        """Make the file anew from the folders."""
        delete_file(self._file)
        self.synchronize()

    def _move_to_scratch(self) -> None:
        import shutil  # here: a list of runs must not pay for them
        import tempfile

        self.close()
        folder = tempfile.mkdtemp(prefix="assay-index-")
        self._delete_scratch = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        file = Path(folder) / "index.sqlite"
        # What the other file remembers need not be read again.
        with contextlib.suppress(sqlite3.Error), contextlib.ExitStack() as stack:
            old = stack.enter_context(open_database(self._file, make=False))
            old.backup(stack.enter_context(open_database(file, make=True)))
        self._file = file

    # -------------------------------------------------------------------------------- what is asked

    @_renew_damaged
    def select(
        self,
        condition: Condition | None,
        moment: Moment,
        *,
        tests: bool = True,
        hidden_label: str = "",
        limit: int | None = None,
    ) -> list[str]:
        """Return the folders of the runs that fulfil a condition, the newest first."""
        where = ["1" if tests else "runs.kind = 'train'"]
        parameters: dict[str, Any] = {}
        if hidden_label:
            parameters["hidden"] = hidden_label
            where.append(
                "runs.folder NOT IN"
                " (SELECT folder FROM items WHERE kind = 'label' AND name = :hidden)"
            )
        if condition is not None:
            sql = Sql(condition)
            parameters |= sql.parameters
            where.append(sql.where)
        query = (
            f"SELECT runs.folder FROM runs {_NOW} WHERE {' AND '.join(where)}"
            " ORDER BY runs.created_ns DESC, runs.folder DESC"
        )
        if limit is not None:  # none given as -1 would make SQLite sort more slowly
            query += f" LIMIT {limit}"
        with self._ask_at(moment) as database:
            return [folder for (folder,) in database.execute(query, self._bind(moment, parameters))]

    @_renew_damaged
    def values(
        self, folders: Collection[str], fields: Sequence[Field], moment: Moment
    ) -> list[dict[str, Any]]:
        """Return for each field what each of these runs has there, by folder.

        Other runs may be among them, where these are many.
        """
        facts = list(dict.fromkeys(field.name for field in fields if field.kind == "run"))
        with self._ask_at(moment) as database:
            by_fact = self._facts(database, folders, facts, moment) if facts else {}
            return [
                by_fact[field.name]
                if field.kind == "run"
                else self._column(database, folders, field)
                for field in fields
            ]

    def _facts(
        self,
        database: sqlite3.Connection,
        folders: Collection[str],
        names: Sequence[str],
        moment: Moment,
    ) -> dict[str, dict[str, Any]]:
        """Return facts of runs by name and folder; all of them are read in one query."""
        columns = ", ".join(RUN_COLUMNS[name] for name in names)
        among, parameters = _among("runs.folder", folders)
        query = f"SELECT runs.folder, {columns} FROM runs {_NOW} WHERE {among}"
        rows = database.execute(query, self._bind(moment, parameters)).fetchall()
        known, *lists = zip(*rows, strict=True) if rows else [()] * (len(names) + 1)
        return {
            name: dict(zip(known, cells, strict=True))
            for name, cells in zip(names, lists, strict=True)
        }

    def _column(
        self, database: sqlite3.Connection, folders: Collection[str], field: Field
    ) -> dict[str, Any]:
        among, parameters = _among("folder", folders)
        if field.kind == "metric":
            assert field.statistic in STATISTICS
            query = f"SELECT folder, {field.statistic} FROM metrics WHERE name = :name AND {among}"
        else:
            query = (
                "SELECT folder, value FROM items"
                f" WHERE {kinds_of(field.kind)} AND name = :name AND {among}"
            )
        rows = database.execute(query, {"name": field.name, **parameters})
        # A call for each of thousands of runs would take as long as the query.
        return {folder: from_cell(cell) if type(cell) is bytes else cell for folder, cell in rows}

    @_renew_damaged
    def rows(self, folders: Sequence[str]) -> dict[str, IndexRow]:
        """Return the rows of these runs, by folder; a run that is gone is left out."""
        among, parameters = _among("folder", folders)
        wanted = set(folders)
        with self.ask() as database:
            rows = database.execute(f"SELECT {_ROW} FROM runs WHERE {among}", parameters)
            return {row[0]: IndexRow._make(row) for row in rows if row[0] in wanted}

    @_renew_damaged
    def all_rows(self) -> list[IndexRow]:
        """Return all rows in the order of their folders."""
        with self.ask() as database:
            query = f"SELECT {_ROW} FROM runs ORDER BY folder"
            return [IndexRow._make(row) for row in database.execute(query)]

    @_renew_damaged
    def open_rows(self) -> list[IndexRow]:
        """Return the rows of the runs that wrote no end."""
        with self.ask() as database:
            query = f"SELECT {_ROW} FROM runs WHERE status = 'running'"
            return [IndexRow._make(row) for row in database.execute(query)]

    @_renew_damaged
    def recent_rows(self, since_ns: int, limit: int) -> list[IndexRow]:
        """Return the runs that are open or ended after a moment, the newest first."""
        with self.ask() as database:
            query = (
                f"SELECT {_ROW} FROM runs"
                " WHERE status = 'running' OR started_ns + seconds * 1e9 > :since"
                " ORDER BY created_ns DESC LIMIT :limit"
            )
            rows = database.execute(query, {"since": since_ns, "limit": limit})
            return [IndexRow._make(row) for row in rows]

    @_renew_damaged
    def folders_by_id(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the folder of each of these runs that is there, by id."""
        with self.ask() as database:
            database.execute("CREATE TEMP TABLE wanted (id PRIMARY KEY)")
            database.executemany(
                "INSERT OR IGNORE INTO wanted VALUES (?)", [(each,) for each in ids]
            )
            return dict(
                database.execute("SELECT runs.id, runs.folder FROM wanted JOIN runs USING (id)")
            )

    @_renew_damaged
    def metric_names(self, folders: Sequence[str] | None = None) -> list[str]:
        """Return every metric that any run, or any of these runs, has, in alphabetical order."""
        with self.ask() as database:
            query = select_names("metrics")
            if folders is not None:
                _fill_page(database, folders)
                query = (
                    "SELECT DISTINCT metrics.name FROM page JOIN metrics USING (folder) ORDER BY 1"
                )
            return [name for (name,) in database.execute(query)]

    @_renew_damaged
    def item_names(self, kind: Kind) -> list[str]:
        """Return every name that any run has something of this kind under."""
        with self.ask() as database:
            query = select_names("items", "kind = :kind")
            return [name for (name,) in database.execute(query, {"kind": kind})]

    @_renew_damaged
    def all_items(self, kind: Kind, folders: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By folder, everything of a kind that these runs have."""
        found: dict[str, dict[str, Any]] = {folder: {} for folder in folders}
        with self.ask() as database:
            database.execute("CREATE TEMP TABLE wanted (folder PRIMARY KEY)")
            database.executemany("INSERT INTO wanted VALUES (?)", [(each,) for each in found])
            # CROSS: looks up the wanted runs. Left to itself SQLite reads every run of each name.
            query = (
                "SELECT folder, value FROM wanted CROSS JOIN items USING (folder) "
                "WHERE kind = ? AND name = ?"
            )
            names = database.execute(select_names("items", "kind = :kind"), {"kind": kind})
            for (name,) in names.fetchall():
                for folder, value in database.execute(query, (kind, name)):
                    found[folder][name] = from_cell(value)
        return found

    # --------------------------------------------------------------------------------- the database

    def _bind(self, moment: Moment, parameters: Mapping[str, Any]) -> dict[str, Any]:
        bound = {
            **parameters,
            "now_ns": moment.now_ns,
            "project": str(self.project.root),
            "runs_dir": os.path.join(self.project.runs_dir, ""),
        }
        return dict(zip(bound, storable(bound.values()), strict=True))

    @contextlib.contextmanager
    def _ask_at(self, moment: Moment) -> Iterator[sqlite3.Connection]:
        with self.ask() as database:
            database.execute("CREATE TEMP TABLE now (folder PRIMARY KEY, status, seconds)")
            database.executemany(
                "INSERT INTO now VALUES (?, ?, ?)",
                [storable((folder, *state)) for folder, state in moment.states.items()],
            )
            yield database

    @contextlib.contextmanager
    def ask(self) -> Iterator[sqlite3.Connection]:
        """Open the file; one that was deleted, locked or damaged meanwhile is made anew."""
        with contextlib.ExitStack() as stack:
            database = self._open(stack)
            if database is None:
                self.synchronize()
                database = self._open(stack)
            if database is None:
                raise RecordError("The index of the runs cannot be read.", where=str(self._file))
            for name, count, function in _FUNCTIONS:
                database.create_function(name, count, function, deterministic=True)
            yield database

    def _open(self, stack: contextlib.ExitStack) -> sqlite3.Connection | None:
        """Return the opened file; None when it is gone, locked or damaged."""
        try:
            database = stack.enter_context(open_database(self._file, make=False, busy_s=_BUSY_S))
            database.execute("SELECT folder FROM texts LIMIT 1").fetchone()
        except sqlite3.Error:
            return None
        return database


@contextlib.contextmanager
def _explain_full_disk(file: Path) -> Iterator[None]:
    """Raise RecordError where neither the index nor one of this process can be written."""
    try:
        yield
    except (OSError, IndexFileError) as error:
        raise RecordError(
            f"No index of the runs can be written, not even for now: {error}.",
            where=str(file),
            fix="free some space there, or where temporary files are: TMPDIR names a folder",
        ) from error


def open_index(project: Project, *, texts: bool = False) -> Index:
    """Return the updated index of a project; `texts` also looks for edited READMEs."""
    index = Index(project)
    index.synchronize(texts=texts)
    return index


def _among(key: str, folders: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return SQL that is true for a few folders, with its parameters.

    For many it is always true: one walk along a column takes less than thousands of look-ups.
    """
    if len(folders) > _FEW:
        return "1", {}
    parameters = dict(zip((f"f{i}" for i in range(len(folders))), folders, strict=True))
    return f"{key} IN ({', '.join(f':{name}' for name in parameters)})", parameters


def _fill_page(database: sqlite3.Connection, folders: Sequence[str]) -> None:
    database.execute("CREATE TEMP TABLE page (folder PRIMARY KEY)")
    database.executemany("INSERT OR IGNORE INTO page VALUES (?)", [(folder,) for folder in folders])


def reindex(project: Project) -> int:
    """Make the index anew from the folders, and return how many runs it holds.

    InputError when it cannot be written.
    """
    path = index_file(project)
    delete_index(project)
    index = open_index(project)
    count = len(index.all_rows())
    if count and not path.exists():
        fix = "Runs can be listed without it, only more slowly."
        raise InputError("The index cannot be written.", where=str(path), fix=fix)
    return count
