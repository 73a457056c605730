"""Watched folders: what a run made, wrote over and deleted in them, with size, hash and time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.core.directory import make_directory
from assay.core.errors import InputError
from assay.core.ids import is_plain_name
from assay.core.regular_file import open_regular
from assay.formats.json_codec import dumps
from assay.record.edits import append_line
from assay.store.file_changes import FileChange, FileEvent

SCAN_S = 1.0
MAX_FILES = 10_000
_CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class _FileState:
    stamp: tuple[int, int, int]  # size, time of change, inode
    sha256: str = ""
    is_older: bool = False  # than the watching, and untouched since


@dataclass(frozen=True, slots=True)
class _Folder:
    name: str
    path: Path
    suffixes: tuple[str, ...]


class FolderWatcher:
    """Thread that scans folders each second and at the end, and appends changes to one file.

    A file that comes and goes between two looks is not seen. Hashes are taken when a file has come
    to rest.
    """

    def __init__(
        self, record: Path, *, on_problem: Callable[[str], None] = lambda message: None
    ) -> None:
        self._record = record
        self._on_problem = on_problem
        self._lock = threading.Lock()
        self._folders: list[_Folder] = []
        self._seen: dict[str, _FileState] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, name: str, path: Path, suffixes: Collection[str]) -> None:
        """Watch a folder, too. What lies in it already counts only once it changes."""
        if not is_plain_name(name):
            raise InputError(
                f"A watched folder cannot be called {name!r}.",
                fix='Take a plain name: run.watch("log")',
            )
        if isinstance(suffixes, str):
            raise InputError("`suffixes` is a list.", fix=f"run.watch({name!r}, [{suffixes!r}])")
        make_directory(path)
        folder = _Folder(name, path, tuple(suffixes))
        with self._lock:
            if any(each.name == name and each.path != path for each in self._folders):
                raise InputError(
                    f"Another folder is watched as {name!r} already.", fix="Take another name."
                )
            if folder not in self._folders:
                self._folders.append(folder)
                self._seen |= {
                    each: _FileState(stamp, is_older=True)
                    for each, stamp in _files(folder)
                    if each not in self._seen
                }
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="assay-files", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Look a last time, and hash what is there."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._look(at_end=True)
            self._folders.clear()

    def _watch(self) -> None:
        while not self._stop.wait(SCAN_S):
            with self._lock:
                self._look()

    def _look(self, *, at_end: bool = False) -> None:
        found: dict[str, tuple[int, int, int]] = {}
        for folder in self._folders:
            found.update(_files(folder))
        for path in [path for path in self._seen if path not in found]:
            self._tell(path, "deleted", self._seen.pop(path))
        for path, stamp in found.items():
            before = self._seen.get(path)
            if before is None or before.stamp != stamp:
                self._seen[path] = _FileState(stamp)
                if at_end:
                    self._hash(path)
                self._tell(path, "created" if before is None else "changed", self._seen[path])
            elif (
                not (before.sha256 or before.is_older)
                and (at_end or time.time_ns() - stamp[1] > SCAN_S * 1e9)
                and self._hash(path)
            ):
                self._tell(path, "kept", before)

    def _hash(self, path: str) -> bool:
        seen = self._seen[path]
        digest = hashlib.sha256()
        try:
            with open(open_regular(self._place(path)), "rb") as file:
                while data := file.read(_CHUNK_BYTES):
                    digest.update(data)
                if _stamp(os.fstat(file.fileno())) != seen.stamp:
                    return False  # still being written: the next look will see
        except OSError:
            return False
        seen.sha256 = digest.hexdigest()
        return True

    def _place(self, path: str) -> Path:
        name, _, rest = path.partition("/")
        return next(folder.path for folder in self._folders if folder.name == name) / rest

    def _tell(self, path: str, event: FileEvent, seen: _FileState) -> None:
        size = seen.stamp[0]
        change = FileChange(
            path=path, event=event, size_bytes=size, sha256=seen.sha256, at_ns=time.time_ns()
        )
        try:
            append_line(self._record, dumps(change))
        except OSError as error:
            self._on_problem(
                f"A change of a watched file could not be written ({error.strerror or error})."
            )


def _files(folder: _Folder) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """Yield name (below the folder's own) and stamp of each file, at most `MAX_FILES`, no links."""
    todo = [(str(folder.path), folder.name)]
    count = 0
    while todo:
        where, name = todo.pop()
        try:
            entries = sorted(os.scandir(where), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):  # it is gone again
                if entry.is_dir(follow_symlinks=False):
                    todo.append((entry.path, f"{name}/{entry.name}"))
                elif entry.is_file(follow_symlinks=False) and (
                    not folder.suffixes or entry.name.endswith(folder.suffixes)
                ):
                    yield f"{name}/{entry.name}", _stamp(entry.stat(follow_symlinks=False))
                    count += 1
            if count >= MAX_FILES:
                return


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
