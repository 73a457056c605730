"""The list of all runs of a project, quickly: a SQLite cache that may be deleted at any time.

The run folders are the truth. Bringing the cache up to date takes one look at each folder's time of
change; a run that is sealed and has not changed is not opened, of one that is open only what
changed is read again. What runs are asked for (metrics, keys of their configs, words) lies in
tables of its own, so that a question reads no folder at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sqlite3
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from platformdirs import user_cache_path

from assay.core.directory import PRIVATE, create_file, make_directory
from assay.core.errors import AssayError, InputError
from assay.core.event_log import Edit, read_edits
from assay.core.ids import id_of_folder
from assay.core.json_codec import dumps, from_plain
from assay.core.lease import Lease
from assay.core.lease import read as read_lease
from assay.core.regular_file import read_bytes, read_start
from assay.core.run_file import Attempt, RunFile, Summary
from assay.store.conditions import Condition, Sql
from assay.store.layout import Project, RunFolder, no_folder, run_in, scan_runs
from assay.store.migrations import SCHEMA, NewerIndexError, migrate, version_of

Kind = Literal["config", "result", "label", "note", "desc"]

# A folder changed so recently may change again within the same tick of the disk's clock: it is read
# again next time.
_RACY_NS = 2_000_000_000
_BUSY_S = 2.0
_BATCH = 250
_BATCH_S = 1.0
_ASKED_BUSY_S = 10.0
_README_BLOCK = "<!-- assay: begin"
_MOST_TEXT = 200_000
_MOST_TAG = 1000
_MOST_ITEMS = 20_000
_MOST_CONFIG_BYTES = 16 << 20


class IndexRow(NamedTuple):
    """One run as its folder has it. `status` is as written ("" when `error` says why nothing can be
    read); what is derived from it (killed, unknown) and the edits are for the reader to work
    out."""

    folder: str
    id: str
    kind: str
    tag: str
    status: str
    created_ns: int
    seconds: float
    started_ns: int
    attempts: int
    step: int
    reason: str
    best_metric: str
    best_mode: str
    best_value: float | None
    best_step: int | None
    project: str
    parent: str
    config_hash: str
    seedless_hash: str
    sweep: str
    point: str
    sealed: int
    error: str
    summaries_json: str
    values_json: str
    lease_json: str
    edits_json: str
    folder_mtime_ns: int
    edits_size: int
    metrics_mtime_ns: int

    @property
    def summaries(self) -> dict[str, Summary]:
        """Last, smallest, largest value of each metric; of an open run as far as it has come."""
        return {
            name: from_plain(Summary, data)
            for name, data in json.loads(self.summaries_json).items()
        }

    @property
    def lease(self) -> Lease | None:
        """Lease as it was when the folder was read; `core.lease.liveness` judges its holder."""
        return from_plain(Lease, json.loads(self.lease_json)) if self.lease_json else None

    @property
    def edits(self) -> list[Edit]:
        """Edits of people after the fact, in order."""
        return (
            [from_plain(Edit, data) for data in json.loads(self.edits_json)]
            if self.edits_json
            else []
        )


_COLUMNS = IndexRow._fields


def _names_in(table: str, where: str = "1") -> str:
    """Return SQL for the distinct names of a table whose key begins with the name.

    SELECT DISTINCT reads every entry of the key; this jumps from name to name, and there are few of
    them.
    """
    next_name = f"SELECT min(name) FROM {table} WHERE {where} AND name > names.name"
    first = f"SELECT min(name) AS name FROM {table} WHERE {where}"
    steps = f"{first} UNION ALL SELECT ({next_name}) FROM names WHERE names.name IS NOT NULL"
    return f"WITH RECURSIVE names(name) AS ({steps}) SELECT name FROM names WHERE name IS NOT NULL"


_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM runs"
_REPLACE = (
    f"INSERT OR REPLACE INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
)


class Item(NamedTuple):
    """Searchable fact of a run: a key of its config, a result, label, newest note or desc."""

    kind: Kind
    name: str
    value: str | int | float | None


@dataclass(frozen=True, slots=True)
class ChangedRun:
    """A run that was read. `items` and `text` are None when only its metrics were."""

    row: IndexRow
    items: Sequence[Item] | None = None
    text: str = ""
    readme_mtime_ns: int = 0


class IndexedState(NamedTuple):
    """The part of an indexed run that tells whether its folder has changed since."""

    folder: str
    sealed: int
    folder_mtime_ns: int
    edits_size: int
    metrics_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Grown:
    """New metrics of a run of which nothing else changed."""

    folder: str
    summaries_json: str
    metrics_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Synchronized:
    """Folders of runs that were read again, that only logged more, and that are gone."""

    changed: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.grown or self.gone)


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
        parameters = {**sql.parameters, "now_ns": now_ns, "project": str(self.project.root)}
        with self.asked() as database:
            database.execute("CREATE TEMP TABLE now (folder PRIMARY KEY, status, seconds)")
            now = ((folder, *state) for folder, state in states.items())
            database.executemany("INSERT INTO now VALUES (?, ?, ?)", now)
            query = (
                "SELECT runs.folder FROM runs LEFT JOIN now ON now.folder = runs.folder WHERE "
                f"{sql.where}"
            )
            return {folder for (folder,) in database.execute(query, parameters)}

    def metric_names(self) -> list[str]:
        """Return every metric that any run has."""
        with self.asked() as database:
            return [name for (name,) in database.execute(_names_in("metrics"))]

    def item_names(self, kind: Kind) -> list[str]:
        """Return every name that any run has something of this kind under."""
        with self.asked() as database:
            return [
                name
                for (name,) in database.execute(_names_in("items", "kind = :kind"), {"kind": kind})
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
                    found.setdefault(folder, {})[name] = value
        return found

    def all_items(self, kind: Kind, folders: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By folder, everything of a kind that these runs have."""
        with self.asked() as database:
            query = "SELECT name, value FROM items WHERE folder = ? AND kind = ?"
            return {folder: dict(database.execute(query, (folder, kind))) for folder in folders}

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
                "folded", 1, lambda value: None if value is None else str(value).casefold()
            )
            yield database

    def _opened(self, stack: contextlib.ExitStack) -> sqlite3.Connection | None:
        """The file, or None when it is gone, locked or damaged since it was written."""
        try:
            database = stack.enter_context(_open(self._file, make=False, busy_s=_ASKED_BUSY_S))
            database.execute("SELECT folder FROM texts LIMIT 1").fetchone()
        except (sqlite3.Error, NewerIndexError):
            return None
        return database

    def _fill(self, database: sqlite3.Connection) -> None:
        """Fill a database from the file and `_unwritten`; without a file, from the folders."""
        changed = self._unwritten
        try:
            with _open(self._file, make=False) as old:
                old.execute("SELECT folder FROM texts LIMIT 1").fetchone()
                old.backup(database)
        except (sqlite3.Error, NewerIndexError):
            if len(changed) == len(self.rows) and all(each.items is not None for each in changed):
                _write(database, changed, [])  # just read, all of them
                return
            folders = [RunFolder(self.project.runs_dir / row.folder) for row in self.rows]
            changed = [_read(folder, 0) for folder in folders if folder.path.is_dir()]
        _write(database, changed, self._gone)


def index_file(project: Project) -> Path:
    """Return the index file of a project: in the user's cache, one for each project and host."""
    name = f"{socket.gethostname()}\0{os.path.realpath(project.runs_dir)}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return user_cache_path("assay", appauthor=False) / "index" / f"{digest}.sqlite"


def refresh(project: Project, *, file: Path | None = None) -> list[IndexRow]:
    """Return all runs of a project, the oldest first, and update the index with what was read.

    An index that is not there, damaged, locked, of a newer assay or not writable costs time and
    nothing else.
    """
    return open_index(project, file=file).rows


def open_index(project: Project, *, texts: bool = False, file: Path | None = None) -> Index:
    """Return the updated index of a project; `texts` also looks for edited READMEs."""
    path = file or index_file(project)
    known = {row.folder: row for row in _remembered(path)}
    readmes = _readmes(path) if texts else {}
    rows: list[IndexRow] = []
    changed: list[ChangedRun] = []
    for entry in scan_runs(project.runs_dir):
        old = known.pop(entry.name, None)
        found = _current(entry, old, readmes.get(entry.name), _live_summaries)
        if found is None:
            continue  # deleted at this moment
        if isinstance(found, Grown):
            assert old is not None
            row = old._replace(
                summaries_json=found.summaries_json, metrics_mtime_ns=found.metrics_mtime_ns
            )
            found = ChangedRun(row)
        if isinstance(found, ChangedRun):
            changed.append(found)
            rows.append(found.row)
        else:
            rows.append(found)
    gone = list(known)
    rows.sort(key=lambda row: row.folder)
    if (changed or gone) and not _remember(path, changed, gone):
        return Index(project, rows, path, changed, gone)
    return Index(project, rows, path)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One folder by name, where not all are listed."""

    name: str
    path: str

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)


class IndexFileError(Exception):
    """An index file cannot be written, or a newer assay made it."""


def synchronize(
    project: Project,
    file: Path,
    *,
    only: Collection[str] | None = None,
    summarize: Callable[[RunFolder], str] | None = None,
    on_read: Callable[[int, int], object] | None = None,
) -> Synchronized:
    """Bring an index file up to date without loading its rows, for a reader that asks for pages.

    `only` names the folders to look at, else all are. `summarize` returns the summaries of an open
    run as JSON. `on_read(done, total)` is called while many runs are read; what was read so far can
    be asked for by then.
    Raises IndexFileError.
    """
    try:
        return _synchronize(
            project, file, only, summarize or _live_summaries, on_read or (lambda done, total: None)
        )
    except (OSError, sqlite3.Error, NewerIndexError) as error:
        raise IndexFileError(str(error)) from error


def _synchronize(
    project: Project,
    file: Path,
    only: Collection[str] | None,
    summarize: Callable[[RunFolder], str],
    on_read: Callable[[int, int], object],
) -> Synchronized:
    known = {each.folder: each for each in _known(file, only)}
    changed: list[str] = []
    grown: list[str] = []
    fresh: list[ChangedRun | Grown] = []
    looked_at: Sequence[os.DirEntry[str] | _Entry]
    if only is None:
        looked_at = list(scan_runs(project.runs_dir))
    else:
        looked_at = [_Entry(name, os.path.join(project.runs_dir, name)) for name in only]
    last_write_s = time.monotonic()
    for done, entry in enumerate(looked_at):
        old = known.pop(entry.name, None)
        found = _current(entry, old, None, summarize)
        if found is None and old is not None:
            known[entry.name] = old  # deleted
        if isinstance(found, ChangedRun | Grown):
            fresh.append(found)
            (changed if isinstance(found, ChangedRun) else grown).append(entry.name)
        if len(fresh) >= _BATCH or (fresh and time.monotonic() - last_write_s > _BATCH_S):
            _update(file, fresh, [])
            fresh, last_write_s = [], time.monotonic()
            on_read(done + 1, len(looked_at))
    gone = list(known)
    if fresh or gone or not file.exists():
        _update(file, fresh, gone)
    return Synchronized(tuple(changed), tuple(grown), tuple(gone))


def lost_rows(project: Project) -> list[IndexRow]:
    """Return the indexed runs of a project whose folder is gone."""
    return _remembered(index_file(project))


def reindex(project: Project) -> int:
    """Make the index anew from the folders, and say how many runs it holds.

    InputError when a newer assay made the one that is there, or when it cannot be written.
    """
    path = index_file(project)
    with contextlib.suppress(sqlite3.Error):
        try:
            with _open(path, make=False):
                pass
        except NewerIndexError as error:
            fix = "Use that assay, or delete the file: it is made again from the run folders."
            raise InputError(
                f"The index was made by a newer assay ({error}).", where=str(path), fix=fix
            ) from None
    _delete(path)
    index = open_index(project)
    if index.rows and not path.exists():
        fix = "Runs can be listed without it, only more slowly."
        raise InputError("The index cannot be written.", where=str(path), fix=fix)
    return len(index.rows)


def delete_index(project: Project) -> None:
    """Throw the cache away; the next `refresh` makes it anew."""
    _delete(index_file(project))


_Row = TypeVar("_Row", IndexRow, IndexedState)


def _current(
    entry: os.DirEntry[str] | _Entry,
    old: _Row | None,
    readme_mtime_ns: int | None,
    summarize: Callable[[RunFolder], str],
) -> _Row | ChangedRun | Grown | None:
    """Return the known row if it still holds, else a new one; None for a deleted folder."""
    try:
        mtime_ns = entry.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return None
    is_settled = (
        old is not None and old.sealed and old.folder_mtime_ns == mtime_ns and not old.edits_size
    )
    if is_settled and not _rewritten(entry.path, readme_mtime_ns):
        return old  # thousands of runs are like this: no path is made for them
    folder = RunFolder(Path(entry.path))
    if (
        old is None
        or old.folder_mtime_ns != mtime_ns
        or _edits_grew(folder, old)
        or _rewritten(entry.path, readme_mtime_ns)
    ):
        # Looked at before it is read: what changes meanwhile is seen as a change the next time.
        fresh = 0 if time.time_ns() - mtime_ns < _RACY_NS else mtime_ns
        return _read(folder, fresh, summarize)
    if old.sealed or (not old.metrics_mtime_ns and no_folder(folder)):
        return old
    metrics_mtime_ns = _mtime_ns(folder.metrics)
    if metrics_mtime_ns == old.metrics_mtime_ns:
        return old
    return Grown(entry.name, summarize(folder), metrics_mtime_ns)


def _edits_grew(folder: RunFolder, old: IndexRow | IndexedState) -> bool:
    """A line added to a file changes no folder. The first edit makes the file, and that does."""
    return bool(old.edits_size) and _size(folder.edits) != old.edits_size


def _rewritten(folder: str, readme_mtime_ns: int | None) -> bool:
    """Return whether a README differs from the indexed one; False where it is not asked for."""
    return readme_mtime_ns is not None and readme_mtime_ns != _mtime_ns(
        os.path.join(folder, "README.md")
    )


def _read(
    folder: RunFolder, mtime_ns: int, summarize: Callable[[RunFolder], str] | None = None
) -> ChangedRun:
    readme_mtime_ns = _mtime_ns(folder.readme)
    edits_size = _size(folder.edits)
    metrics_mtime_ns = _mtime_ns(folder.metrics)
    run, error = run_in(folder)
    if error and no_folder(folder):
        run = RunFile(
            id=id_of_folder(folder.path.name) or "", kind="train", created_ns=_created_ns(folder)
        )
        return ChangedRun(_row(folder, run, error, mtime_ns), [], run.id, 0)
    lease = read_lease(folder.path) if run is None or not run.sealed else None
    edits = _edits(folder) if edits_size else []
    if run is None:
        run = RunFile(
            id=id_of_folder(folder.path.name) or "", kind="train", created_ns=_created_ns(folder)
        )
    values = {**run.values, **{edit.key: edit.new for edit in edits if edit.what == "value"}}
    tag = next(
        (e.new for e in reversed(edits) if e.what == "tag" and isinstance(e.new, str)), run.tag
    )
    summaries_json = dumps(run.summaries) if run.sealed else (summarize or _live_summaries)(folder)
    row = _row(folder, run, error, mtime_ns)
    row = row._replace(
        tag=tag[:_MOST_TAG],
        step=_last_step(summaries_json) if run.status == "running" else row.step,
        summaries_json=summaries_json,
        values_json=dumps(values),
        lease_json=dumps(lease) if lease else "",
        edits_json=dumps(edits) if edits else "",
        edits_size=edits_size,
        metrics_mtime_ns=metrics_mtime_ns,
    )
    page = _text_of(folder.readme)
    items = list(islice(_items(folder, values, edits, page), _MOST_ITEMS))
    said = [row.id, tag, page, *(str(edit.new) for edit in edits if edit.what == "note")]
    said += [item.name for item in items if item.kind == "label"]
    return ChangedRun(row, items, "\n".join(said).casefold(), readme_mtime_ns)


def _row(folder: RunFolder, run: RunFile, error: str, mtime_ns: int) -> IndexRow:
    """Return the row of `run.json`, without what lies beside it."""
    best = run.best
    newest = run.attempts[-1] if run.attempts else None
    return IndexRow(
        folder=folder.path.name,
        id=run.id,
        kind=run.kind,
        tag=run.tag[:_MOST_TAG],
        status="" if error else run.status,
        created_ns=run.created_ns,
        seconds=run.seconds,
        started_ns=newest.started_ns if newest else run.created_ns,
        attempts=len(run.attempts),
        step=newest.to_step if newest else 0,
        reason=newest.reason[:_MOST_TAG] if newest else "",
        best_metric=best.metric if best else "",
        best_mode=best.mode if best else "",
        best_value=best.value if best else None,
        best_step=best.step if best else None,
        project=run.project,
        parent=run.parent,
        config_hash=newest.config_hash if newest else "",
        seedless_hash=newest.seedless_hash if newest else "",
        sweep=_launched(run.attempts, "sweep"),
        point=_launched(run.attempts, "point"),
        sealed=int(run.sealed),
        error=error,
        summaries_json="{}",
        values_json="{}",
        lease_json="",
        edits_json="",
        folder_mtime_ns=mtime_ns,
        edits_size=0,
        metrics_mtime_ns=0,
    )


def _launched(attempts: Sequence[Attempt], name: str) -> str:
    """Return a text of the launch metadata, "" without one.

    A resumed attempt does not repeat it.
    """
    values = (attempt.launch.get(name) for attempt in attempts)
    return next((value[:_MOST_TAG] for value in values if isinstance(value, str)), "")


def _edits(folder: RunFolder) -> list[Edit]:
    try:
        return list(read_edits(folder.edits))
    except OSError:  # it is no file, or one of gigabytes: the run is listed without
        return []


def _last_step(summaries_json: str) -> int:
    """Return the last step of which anything was logged: that of a run that has written no end."""
    return max((int(each["step"]) for each in json.loads(summaries_json).values()), default=0)


def _items(
    folder: RunFolder, values: Mapping[str, Any], edits: Sequence[Edit], page: str
) -> Iterator[Item]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        yield from _flat(
            tomllib.loads(read_bytes(folder.config_toml, _MOST_CONFIG_BYTES).decode("utf-8"))
        )
    for name, value in values.items():
        yield Item("result", name, _cell(value))
    labels = {edit.key: bool(edit.new) for edit in edits if edit.what == "label"}
    yield from (Item("label", label, 1) for label, has in labels.items() if has)
    notes = [str(edit.new) for edit in edits if edit.what == "note"]
    if notes:
        yield Item("note", "", notes[-1])
    if desc := described(page):
        yield Item("desc", "", desc)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[Item]:
    """Yield the leaves of a config by dotted key, also from lists of tables."""
    for key, value in values.items():
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            for i, each in enumerate(value):
                yield from _flat(
                    each if isinstance(each, dict) else {"": each}, f"{prefix}{key}[{i}]."
                )
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield Item("config", f"{prefix}{key}".rstrip("."), _cell(value))


def _cell(value: Any) -> str | int | float | None:
    """Return a value as the index can hold it: numbers and texts as they are, all else as text."""
    match value:
        case None | str() | float():
            return value
        case int():
            if -(2**63) <= value < 2**63:
                return int(value)
            return float(value) if abs(value) < 1 << 1000 else str(value)
        case list() | dict():
            return json.dumps(value, ensure_ascii=False, default=str)
        case _:
            return str(value)


def described(page: str) -> str:
    """Return the user's part of a README: between the title and the generated block."""
    own = page.partition(_README_BLOCK)[0].strip()
    title, _, body = own.partition("\n")
    return body.strip() if title.startswith("# ") else own


def _text_of(path: Path) -> str:
    try:
        return read_start(path, _MOST_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


def _live_summaries(folder: RunFolder) -> str:
    from assay.store.series import summaries  # here: a list of ended runs must not pay for it

    try:
        return dumps(summaries(folder.metrics))
    except (OSError, AssayError):
        return "{}"


def _created_ns(folder: RunFolder) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(time.mktime(time.strptime(folder.path.name[:11], "%y%m%d-%H%M"))) * 1_000_000_000
    return 0


def _mtime_ns(path: Path | str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


# ----------------------------------------------------------------------------------- the cache file


def _remembered(path: Path) -> list[IndexRow]:
    try:
        with _open(path, make=False) as database:
            if version_of(database) == SCHEMA:
                return [IndexRow._make(row) for row in database.execute(_SELECT)]
        with _open(path, make=True) as database:
            _write(database, [], [])  # it was of an older assay
            return [IndexRow._make(row) for row in database.execute(_SELECT)]
    except NewerIndexError:
        return []
    except sqlite3.DatabaseError as error:
        # Not there, locked, not readable: as good as none. No such table, no database: damaged.
        if error.sqlite_errorcode & 0xFF in _DAMAGED:
            _delete(path)
        return []


_DAMAGED = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
)


def _readmes(path: Path) -> dict[str, int]:
    """When the README of each run was last changed, as far as that is known."""
    try:
        with _open(path, make=False) as database:
            return dict(database.execute("SELECT folder, readme_mtime_ns FROM texts"))
    except (sqlite3.Error, NewerIndexError):
        return {}


def _known(path: Path, only: Collection[str] | None) -> list[IndexedState]:
    """The same without what is not needed to see what has changed."""
    query = f"SELECT {', '.join(IndexedState._fields)} FROM runs"
    try:
        with _open(path, make=False) as database:
            if version_of(database) == SCHEMA:
                if only is None:
                    return [IndexedState._make(row) for row in database.execute(query)]
                found = (
                    database.execute(f"{query} WHERE folder = ?", (folder,)).fetchone()
                    for folder in only
                )
                return [IndexedState._make(row) for row in found if row is not None]
    except sqlite3.DatabaseError:
        pass
    rows = [
        IndexedState(*(getattr(row, name) for name in IndexedState._fields))
        for row in _remembered(path)
    ]
    return [row for row in rows if only is None or row.folder in only]


def _remember(path: Path, changed: Sequence[ChangedRun], gone: Sequence[str]) -> bool:
    """Write what was read; whether that was possible."""
    try:
        _update(path, changed, gone)
        return True
    except (OSError, sqlite3.Error, NewerIndexError):
        return False


def _update(path: Path, changed: Sequence[ChangedRun | Grown], gone: Sequence[str]) -> None:
    make_directory(path.parent, PRIVATE)
    with contextlib.suppress(FileExistsError):
        os.close(create_file(path))  # as open as its folder, which SQLite does not see to
    with _open(path, make=True) as database:
        _write(database, changed, gone)


def _write(
    database: sqlite3.Connection, found: Sequence[ChangedRun | Grown], gone: Sequence[str]
) -> None:
    # IMMEDIATE: a transaction that reads first and then wants to write is refused at once when
    # others write.
    database.execute("BEGIN IMMEDIATE")
    migrate(database)
    for table in ("runs", "metrics", "items", "texts"):
        database.executemany(f"DELETE FROM {table} WHERE folder = ?", [(name,) for name in gone])
    changed = [each for each in found if isinstance(each, ChangedRun)]
    grown = [each for each in found if isinstance(each, Grown)]
    database.executemany(_REPLACE, [_storable(each.row) for each in changed])
    database.executemany(
        "UPDATE runs SET summaries_json = ?, metrics_mtime_ns = ? WHERE folder = ?",
        [_storable((each.summaries_json, each.metrics_mtime_ns, each.folder)) for each in grown],
    )
    summaries = [(each.row.folder, each.row.summaries_json) for each in changed]
    summaries += [(each.folder, each.summaries_json) for each in grown]
    database.executemany(
        "DELETE FROM metrics WHERE folder = ?", [(folder,) for folder, _ in summaries]
    )
    database.executemany(
        "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            _storable(_metric(folder, *pair))
            for folder, text in summaries
            for pair in json.loads(text).items()
        ],
    )
    read = [(each, each.items) for each in changed if each.items is not None]
    database.executemany(
        "DELETE FROM items WHERE folder = ?", [(each.row.folder,) for each, _ in read]
    )
    database.executemany(
        "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)",
        [
            _storable((item.kind, item.name, each.row.folder, item.value))
            for each, items in read
            for item in items
        ],
    )
    texts = [_storable((each.row.folder, each.text, each.readme_mtime_ns)) for each, _ in read]
    database.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", texts)
    database.execute("COMMIT")


def _storable(values: Iterable[Any]) -> tuple[Any, ...]:
    """Half a character is no text that a database takes: a question mark stands for it there."""
    return tuple(
        value.encode("utf-8", "replace").decode()
        if isinstance(value, str) and not value.isascii()
        else value
        for value in values
    )


def _metric(folder: str, name: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
    # Infinities and nan are texts in JSON; a nan is nothing in a database.
    numbers = (float(data[key]) for key in ("last", "min", "max", "mean"))
    return (name, folder, *numbers, data["count"])


@contextlib.contextmanager
def _open(path: Path, *, make: bool, busy_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """The file as a database. NewerIndexError: it is not for us."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if make else 'ro'}"
    timeout = _BUSY_S if busy_s is None else busy_s
    with contextlib.closing(
        sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
    ) as database:
        # A cache need not survive power loss; what is torn then is found to be so, and made anew.
        database.execute("PRAGMA synchronous = OFF")
        version_of(database)
        yield database


def _delete(path: Path) -> None:
    for each in (path, path.with_name(path.name + "-journal")):
        with contextlib.suppress(OSError):
            each.unlink()
