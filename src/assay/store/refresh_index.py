"""Bringing the index of a project up to date with its run folders.

That takes one look at each folder's time of change; a run that is sealed and has not changed is not
opened, of one that is open only what changed is read again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from assay.core.errors import InputError
from assay.store.index import Index
from assay.store.index_database import (
    delete_file,
    index_file,
    open_database,
    remembered_readmes,
    remembered_rows,
    remembered_states,
    try_update,
    update,
)
from assay.store.index_rows import ChangedRun, Grown, IndexedState, IndexRow
from assay.store.layout import Project, RunFolder, no_folder, scan_runs
from assay.store.migrations import NewerIndexError
from assay.store.read_record import live_summaries, mtime_ns_of, read_record, size_of

# A folder changed so recently may change again within the same tick of the disk's clock: it is read
# again next time.
_RACY_NS = 2_000_000_000
_BATCH = 250
_BATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class Synchronized:
    """Folders of runs that were read again, that only logged more, and that are gone."""

    changed: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.grown or self.gone)


def refresh(project: Project, *, file: Path | None = None) -> list[IndexRow]:
    """Return all runs of a project, the oldest first, and update the index with what was read.

    An index that is not there, damaged, locked, of a newer assay or not writable costs time and
    nothing else.
    """
    return open_index(project, file=file).rows


def open_index(project: Project, *, texts: bool = False, file: Path | None = None) -> Index:
    """Return the updated index of a project; `texts` also looks for edited READMEs."""
    path = file or index_file(project)
    known = {row.folder: row for row in remembered_rows(path)}
    readmes = remembered_readmes(path) if texts else {}
    rows: list[IndexRow] = []
    changed: list[ChangedRun] = []
    for entry in scan_runs(project.runs_dir):
        old = known.pop(entry.name, None)
        found = _current(entry, old, readmes.get(entry.name), live_summaries)
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
    if (changed or gone) and not try_update(path, changed, gone):
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
            project, file, only, summarize or live_summaries, on_read or (lambda done, total: None)
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
    known = {each.folder: each for each in remembered_states(file, only)}
    changed: list[str] = []
    grown: list[str] = []
    fresh: list[ChangedRun | Grown] = []
    looked_at: Sequence[os.DirEntry[str] | _Entry]
    if only is None:
        # The newest first, which are shown first. In the order of their names the index of 10,000
        # runs also takes two thirds of the time: each write touches few pages of a table.
        looked_at = sorted(scan_runs(project.runs_dir), key=attrgetter("name"), reverse=True)
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
            update(file, fresh, [])
            fresh = []
            last_write_s = time.monotonic()
            on_read(done + 1, len(looked_at))
    gone = list(known)
    if fresh or gone or not file.exists():
        update(file, fresh, gone)
    return Synchronized(tuple(changed), tuple(grown), tuple(gone))


def lost_rows(project: Project) -> list[IndexRow]:
    """Return the indexed runs of a project whose folder is gone."""
    return remembered_rows(index_file(project))


def reindex(project: Project) -> int:
    """Make the index anew from the folders, and say how many runs it holds.

    InputError when a newer assay made the one that is there, or when it cannot be written.
    """
    path = index_file(project)
    with contextlib.suppress(sqlite3.Error):
        try:
            with open_database(path, make=False):
                pass
        except NewerIndexError as error:
            fix = "Use that assay, or delete the file: it is made again from the run folders."
            raise InputError(
                f"The index was made by a newer assay ({error}).", where=str(path), fix=fix
            ) from None
    delete_file(path)
    index = open_index(project)
    if index.rows and not path.exists():
        fix = "Runs can be listed without it, only more slowly."
        raise InputError("The index cannot be written.", where=str(path), fix=fix)
    return len(index.rows)


def delete_index(project: Project) -> None:
    """Throw the cache away; the next `refresh` makes it anew."""
    delete_file(index_file(project))


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
        return read_record(folder, fresh, summarize)
    if old.sealed or (not old.metrics_mtime_ns and no_folder(folder)):
        return old
    metrics_mtime_ns = mtime_ns_of(folder.metrics)
    if metrics_mtime_ns == old.metrics_mtime_ns:
        return old
    return Grown(entry.name, summarize(folder), metrics_mtime_ns)


def _edits_grew(folder: RunFolder, old: IndexRow | IndexedState) -> bool:
    """A line added to a file changes no folder. The first edit makes the file, and that does."""
    return bool(old.edits_size) and size_of(folder.edits) != old.edits_size


def _rewritten(folder: str, readme_mtime_ns: int | None) -> bool:
    """Return whether a README differs from the indexed one; False where it is not asked for."""
    return readme_mtime_ns is not None and readme_mtime_ns != mtime_ns_of(
        os.path.join(folder, "README.md")
    )
