"""Read marks of messages: one small file for each user, outside of all records."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from platformdirs import user_data_path

from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import RecordError
from assay.formats.json_codec import read_json, write_json
from assay.store.layout import Project, refusal

if sys.platform != "win32":
    import fcntl

FORMAT = 1
MAX_BYTES = 16 << 20
FILE_NAME = "inbox.json"
NEW_DAYS = 14
"""Days after which messages count as read when a project is looked at for the first time."""

_DAY_NS = 86_400 * 10**9
_MOST = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Everything up to `until_ns` was read but `unread`; of what came later, `read` was."""

    until_ns: int = 0
    read: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def is_read(self, message: str, at_ns: int) -> bool:
        if at_ns <= self.until_ns:
            return message not in self.unread
        return message in self.read


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: int = FORMAT
    projects: Mapping[str, Marks] = field(default_factory=dict)


def marks_file() -> Path:
    return user_data_path("assay", appauthor=False) / FILE_NAME


def read_marks(project: Project, *, file: Path | None = None) -> Marks:
    """Return what was read of a project."""
    marks = _read(file or marks_file()).projects.get(_key(project))
    return marks if marks is not None else Marks(until_ns=time.time_ns() - NEW_DAYS * _DAY_NS)


def mark_read(
    project: Project,
    messages: Iterable[tuple[str, int]],
    *,
    is_read: bool = True,
    until_ns: int = 0,
    file: Path | None = None,
) -> Marks:
    """Mark messages (id and time) as read or unread; with `until_ns` everything up to then as read.

    InputError or RecordError when the file cannot be written.
    """
    path = file or marks_file()
    with _alone(path):
        found = _read(path)
        marks = found.projects.get(_key(project)) or Marks(
            until_ns=time.time_ns() - NEW_DAYS * _DAY_NS
        )
        if until_ns:
            marks = Marks(until_ns=max(until_ns, marks.until_ns))
        for message, at_ns in messages:
            marks = _read_marked(marks, message, at_ns, is_read=is_read)
        try:
            write_json(
                path,
                replace(found, projects={**found.projects, _key(project): marks}),
                durable=False,
            )
        except OSError as error:
            raise refusal(error, path, "What was read cannot be remembered") from error
        return marks


def _read_marked(marks: Marks, message: str, at_ns: int, *, is_read: bool) -> Marks:
    is_old = at_ns <= marks.until_ns
    read = tuple(each for each in marks.read if each != message)
    unread = tuple(each for each in marks.unread if each != message)
    if is_read and not is_old:
        read = (*read, message)[-_MOST:]
    if not is_read and is_old:
        unread = (*unread, message)[-_MOST:]
    return replace(marks, read=read, unread=unread)


def _key(project: Project) -> str:
    return os.path.realpath(project.runs_dir)


def _read(path: Path) -> _File:
    try:
        return read_json(path, _File, version=FORMAT, limit=MAX_BYTES)
    except (FileNotFoundError, RecordError):
        return _File()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the file, so that of two marks at once none is lost."""
    try:
        make_directory(path.parent, PRIVATE)
        descriptor = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise refusal(error, path, "What was read cannot be remembered") from error
    try:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
