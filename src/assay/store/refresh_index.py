"""Bringing the index of a project up to date with its run folders.

That takes one look at each folder's time of change; a run that is sealed and has not changed is not
opened, of one that is open only what changed is read again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from stat import S_ISREG

from assay.core.regular_file import file_size, mtime_ns_of
from assay.formats.metrics_file import metrics_state
from assay.store.index_database import (
    delete_file,
    index_file,
    read_readme_times,
    read_states,
    update,
)
from assay.store.index_rows import ChangedRun, Grown, IndexedState
from assay.store.layout import Project, RunFolder, no_folder, scan_runs
from assay.store.read_record import last_step, live_summaries, read_record

# A folder changed so recently may change again within the same tick of the disk's clock: it is read
# again next time.
_RACY_NS = 2_000_000_000
_BATCH = 250
_BATCH_S = 1.0
_MOST_WAITING = 2_000
"""So many runs that were read wait in memory to be written, where nobody asks meanwhile."""


@dataclass(frozen=True, slots=True)
class Synchronized:
    """Folders of runs that were read again, that only logged more, and that are gone."""

    changed: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.grown or self.gone)

    def __add__(self, other: Synchronized) -> Synchronized:
        return Synchronized(
            self.changed + other.changed, self.grown + other.grown, self.gone + other.gone
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One folder by name, where not all are listed."""

    name: str
    path: str

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found = os.stat(self.path, follow_symlinks=follow_symlinks)
        if S_ISREG(found.st_mode):  # `scan_runs` leaves it out
            raise NotADirectoryError(self.path)
        return found


class IndexFileError(Exception):
    """An index file cannot be written."""


def synchronize(
    project: Project,
    file: Path,
    *,
    only: Collection[str] | None = None,
    texts: bool = False,
    summarize: Callable[[RunFolder], str] | None = None,
    on_read: Callable[[int, int], object] | None = None,
) -> Synchronized:
    """Bring an index file up to date without loading its rows.

    `only` names the folders to look at, else all are; `texts` also looks for edited READMEs.
    `summarize` returns the summaries of an open run as JSON. With `on_read(done, total)` many runs
    are written in parts, and what was read so far can be asked for whenever it is called.
    Raises IndexFileError.
    """
    try:
        return _synchronize(project, file, only, texts, summarize or live_summaries, on_read)
    except (OSError, sqlite3.Error) as error:
        raise IndexFileError(str(error)) from error


def _synchronize(
    project: Project,
    file: Path,
    only: Collection[str] | None,
    texts: bool,
    summarize: Callable[[RunFolder], str],
    on_read: Callable[[int, int], object] | None,
) -> Synchronized:
    known = {each.folder: each for each in read_states(file, only)}
    if not file.exists():
        update(file, [], [])  # where that fails no run is read in vain
    readmes = read_readme_times(file) if texts else {}
    changed: list[str] = []
    grown: list[str] = []
    fresh: list[ChangedRun | Grown] = []
    looked_at: Sequence[os.DirEntry[str] | _Entry]
    if only is None:
        # The newest first, which are shown first. In the order of their names the index of 10,000
        # runs also takes two thirds of the time: each write touches few pages of a table.
        looked_at = sorted(scan_runs(project.runs_dir), key=attrgetter("name"), reverse=True)
    else:
        runs_dir = project.runs_dir
        looked_at = [_Entry(name, os.path.join(runs_dir, name)) for name in sorted(only)[::-1]]
    last_write_s = time.monotonic()
    for done, entry in enumerate(looked_at):
        old = known.pop(entry.name, None)
        found = _current(entry, old, readmes.get(entry.name), summarize)
        if found is old:
            continue
        if isinstance(found, ChangedRun | Grown):
            fresh.append(found)
            (changed if isinstance(found, ChangedRun) else grown).append(entry.name)
        elif old is not None:
            known[entry.name] = old  # deleted
        is_due = len(fresh) >= _BATCH or (fresh and time.monotonic() - last_write_s > _BATCH_S)
        if len(fresh) >= _MOST_WAITING or (is_due and on_read is not None):
            update(file, fresh, [])
            fresh = []
            last_write_s = time.monotonic()
            if on_read is not None:
                on_read(done + 1, len(looked_at))
    gone = list(known)
    if fresh or gone:
        update(file, fresh, gone)
    return Synchronized(tuple(changed), tuple(grown), tuple(gone))


def delete_index(project: Project) -> None:
    """Delete the cache; it is made anew when it is next needed."""
    delete_file(index_file(project))


def _current(
    entry: os.DirEntry[str] | _Entry,
    old: IndexedState | None,
    readme_mtime_ns: int | None,
    summarize: Callable[[RunFolder], str],
) -> IndexedState | ChangedRun | Grown | None:
    """Return the known state if it still holds, else what is new; None for a deleted folder."""
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
    _, metrics_mtime_ns = metrics_state(folder.metrics)
    if metrics_mtime_ns == old.metrics_mtime_ns:
        return old
    summaries_json = summarize(folder)
    return Grown(entry.name, summaries_json, last_step(summaries_json), metrics_mtime_ns)


def _edits_grew(folder: RunFolder, old: IndexedState) -> bool:
    """A line added to a file changes no folder. The first edit makes the file, and that does."""
    return bool(old.edits_size) and file_size(folder.edits) != old.edits_size


def _rewritten(folder: str, readme_mtime_ns: int | None) -> bool:
    """Return whether a README differs from the indexed one; False where it is not asked for."""
    return readme_mtime_ns is not None and readme_mtime_ns != mtime_ns_of(
        os.path.join(folder, "README.md")
    )
