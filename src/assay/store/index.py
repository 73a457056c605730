"""The list of all runs of a project, quickly: a SQLite cache that may be deleted at any time.

The run folders are the truth. Bringing the cache up to date takes one look at each folder's time of change; a run that
is sealed and has not changed is not opened, of one that is open only what changed is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

from assay.core import run_file
from assay.core.errors import AssayError, RecordError
from assay.core.facts import Edit, read_edits
from assay.core.ids import id_of_folder
from assay.core.lease import Lease
from assay.core.lease import read as read_lease
from assay.core.plain import dumps, from_plain
from assay.core.run_file import RunFile, Summary
from assay.store.layout import Project, RunFolder, scan_runs

SCHEMA = 1
"""To be raised whenever a column or its meaning changes: an index of another schema is made anew."""

# A folder changed so recently may change again within the same tick of the disk's clock: it is read again next time.
_RACY_NS = 2_000_000_000
_BUSY_S = 2.0


class IndexRow(NamedTuple):
    """One run as its folder has it. `status` is as written ("" when `error` says why nothing can be read); what is
    derived from it (killed, unknown) and the edits are for the reader to work out."""

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
        return {name: from_plain(Summary, data) for name, data in json.loads(self.summaries_json).items()}

    @property
    def lease(self) -> Lease | None:
        """The lease as it was when the folder was read; how alive its holder is, `core.lease.liveness` tells."""
        return from_plain(Lease, json.loads(self.lease_json)) if self.lease_json else None

    @property
    def edits(self) -> list[Edit]:
        """What people said afterwards, in order."""
        return [from_plain(Edit, data) for data in json.loads(self.edits_json)] if self.edits_json else []


_COLUMNS = IndexRow._fields
_CREATE = f"CREATE TABLE IF NOT EXISTS runs ({', '.join(_COLUMNS)}, PRIMARY KEY (folder)) WITHOUT ROWID"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM runs"
_REPLACE = f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(_COLUMNS))})"


def index_file(project: Project) -> Path:
    """Where the index of a project lies: in the user's cache, one for each project and host."""
    name = f"{socket.gethostname()}\0{os.path.realpath(project.runs_dir)}"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return user_cache_path("assay", appauthor=False) / "index" / f"{digest}.sqlite"


def refresh(project: Project, *, file: Path | None = None) -> list[IndexRow]:
    """All runs of a project as they are now, the oldest first; what had to be read is remembered for the next time.

    An index that is not there, damaged, locked or not writable costs time and nothing else.
    """
    path = file or index_file(project)
    known = {row.folder: row for row in _remembered(path)}
    rows, changed = [], []
    for entry in scan_runs(project.runs_dir):
        old = known.pop(entry.name, None)
        row = _current(entry, old)
        if row is None:
            continue  # deleted at this moment
        rows.append(row)
        if row is not old:
            changed.append(row)
    if changed or known:
        _remember(path, changed, list(known))
    rows.sort(key=lambda row: row.folder)
    return rows


def delete_index(project: Project) -> None:
    """Throw the cache away; the next `refresh` makes it anew."""
    _delete(index_file(project))


def _current(entry: os.DirEntry[str], old: IndexRow | None) -> IndexRow | None:
    try:
        mtime_ns = entry.stat().st_mtime_ns
    except OSError:
        return None
    if old is not None and old.sealed and old.folder_mtime_ns == mtime_ns and not old.edits_size:
        return old  # thousands of runs are like this: no path is made for them
    folder = RunFolder(Path(entry.path))
    if old is None or old.folder_mtime_ns != mtime_ns or _edits_grew(folder, old):
        # Looked at before it is read: what changes meanwhile is seen as a change the next time.
        fresh = 0 if time.time_ns() - mtime_ns < _RACY_NS else mtime_ns
        return _read(folder, fresh)
    if old.sealed:
        return old
    metrics_mtime_ns = _mtime_ns(folder.metrics)
    if metrics_mtime_ns == old.metrics_mtime_ns:
        return old
    return old._replace(summaries_json=_live_summaries(folder), metrics_mtime_ns=metrics_mtime_ns)


def _edits_grew(folder: RunFolder, old: IndexRow) -> bool:
    """A line added to a file changes no folder. The first edit makes the file, and that does."""
    return bool(old.edits_size) and _size(folder.edits) != old.edits_size


def _read(folder: RunFolder, mtime_ns: int) -> IndexRow:
    edits_size = _size(folder.edits)
    metrics_mtime_ns = _mtime_ns(folder.metrics)
    error = ""
    try:
        run: RunFile | None = run_file.read(folder.path)
    except FileNotFoundError:
        run, error = None, "run.json is missing: the run was stopped before it began, or it was deleted."
    except RecordError as problem:
        run, error = None, problem.what
    lease = read_lease(folder.path) if run is None or not run.sealed else None
    edits = list(read_edits(folder.edits)) if edits_size else []
    if run is None:
        run = RunFile(id=id_of_folder(folder.path.name) or "", kind="train", created_ns=_created_ns(folder))
    best = run.best
    newest = run.attempts[-1] if run.attempts else None
    return IndexRow(
        folder=folder.path.name,
        id=run.id,
        kind=run.kind,
        tag=run.tag,
        status="" if error else run.status,
        created_ns=run.created_ns,
        seconds=run.seconds,
        started_ns=newest.started_ns if newest else run.created_ns,
        attempts=len(run.attempts),
        step=newest.to_step if newest else 0,
        reason=newest.reason if newest else "",
        best_metric=best.metric if best else "",
        best_mode=best.mode if best else "",
        best_value=best.value if best else None,
        best_step=best.step if best else None,
        project=run.project,
        parent=run.parent,
        config_hash=newest.config_hash if newest else "",
        seedless_hash=newest.seedless_hash if newest else "",
        sealed=int(run.sealed),
        error=error,
        summaries_json=dumps(run.summaries) if run.sealed else _live_summaries(folder),
        values_json=dumps(run.values),
        lease_json=dumps(lease) if lease else "",
        edits_json=dumps(edits) if edits else "",
        folder_mtime_ns=mtime_ns,
        edits_size=edits_size,
        metrics_mtime_ns=metrics_mtime_ns,
    )


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


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


# ------------------------------------------------------------------------------------------------------- the cache file


def _remembered(path: Path) -> list[IndexRow]:
    try:
        with _open(path, make=False) as database:
            return [IndexRow._make(row) for row in database.execute(_SELECT)]
    except sqlite3.OperationalError:
        return []  # not there, locked, not readable: as good as none
    except sqlite3.DatabaseError:
        _delete(path)
        return []


def _remember(path: Path, rows: Sequence[IndexRow], gone: Sequence[str]) -> None:
    with contextlib.suppress(OSError, sqlite3.Error):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _open(path, make=True) as database:
            # IMMEDIATE: a transaction that reads first and then wants to write is refused at once when others write.
            database.execute("BEGIN IMMEDIATE")
            if database.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
                database.execute("DROP TABLE IF EXISTS runs")
                database.execute(f"PRAGMA user_version = {SCHEMA}")
            database.execute(_CREATE)
            database.executemany("DELETE FROM runs WHERE folder = ?", [(name,) for name in gone])
            database.executemany(_REPLACE, rows)
            database.execute("COMMIT")


@contextlib.contextmanager
def _open(path: Path, *, make: bool) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if make else 'ro'}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)) as database:
        # A cache need not survive power loss; what is torn then is found to be so, and made anew.
        database.execute("PRAGMA synchronous = OFF")
        if not make and database.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
            raise sqlite3.OperationalError("the index of another version")
        yield database


def _delete(path: Path) -> None:
    for each in (path, path.with_name(path.name + "-journal")):
        with contextlib.suppress(OSError):
            each.unlink()
