"""Open folder whose entries are reached relative to it, so that no link is ever followed.

Between a check of a path and its use, a folder in it may be swapped for a link to another place.
A name relative to an open folder cannot lead anywhere else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from assay.core.regular_file import kind_of_mode, open_regular, read_bytes

if sys.platform != "win32":
    import fcntl

PRIVATE = 0o700
"""Mode of a folder that only its owner may enter. Entries made inside get the folder's mode."""

_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_HAS_HANDLES = os.open in os.supports_dir_fd and os.scandir in os.supports_fd  # not on Windows
_GONE = ".gone-"
_LOOK_AGAIN_S = 0.01


class LinkedFolderError(OSError):
    """Something else than a folder is in the place of a folder."""

    def __init__(self, error: OSError, kind: str, path: object) -> None:
        super().__init__(error.errno, f"it is {kind}, not a folder", str(path))


class Directory:
    """A folder that is held open, from `open_directory`; a context manager that closes it."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int | None:
        """The folder's descriptor, for `dir_fd`; None on Windows, where paths have to do."""
        return self._descriptor

    def close(self) -> None:
        """Let go of the folder. Twice is once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def mode(self) -> int:
        """The permissions of the folder."""
        status = os.stat(self.path) if self._descriptor is None else os.fstat(self._descriptor)
        return stat.S_IMODE(status.st_mode)

    @contextlib.contextmanager
    def alone(self, patience_s: float | None = None) -> Iterator[None]:
        """Hold the folder: of two who change what lies in it, one waits. It ends with the process.

        OSError where the disk has no locks, BlockingIOError once `patience_s` is over. On Windows
        nobody waits, and the last one wins.
        """
        if sys.platform == "win32" or self._descriptor is None:
            yield
            return
        until = time.monotonic() + (patience_s or 0.0)
        # Opened anew: a lock belongs to an open file, and this object may outlive the change.
        descriptor = os.open(".", _FOLDER_FLAGS, dir_fd=self._descriptor)
        try:
            how = fcntl.LOCK_EX | (0 if patience_s is None else fcntl.LOCK_NB)
            while True:
                try:
                    fcntl.flock(descriptor, how)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise
                    time.sleep(_LOOK_AGAIN_S)
            yield
        finally:
            os.close(descriptor)

    def folder(self, name: str, *, create: bool = False) -> Directory:
        """Open a folder in this one.

        With `create` a missing one is made, with this folder's mode.
        """
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._at(name), self.mode & 0o777, dir_fd=self._descriptor)
        return _open(self._at(name), self.path / name, self._descriptor)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file and return its descriptor; a new one gets the folder's mode."""
        mode = file_mode(self.mode) if flags & os.O_CREAT else 0
        return open_regular(self._at(name), flags, mode, dir_fd=self._descriptor)

    def read_link(self, name: str) -> str:
        """Return the text of a link in this folder: the path that it leads to."""
        return os.readlink(self._at(name), dir_fd=self._descriptor)

    def create(self, name: str, mode: int) -> int:
        """Create a file with these permissions and return its descriptor for writing.

        Raises FileExistsError when the name is taken.
        """
        return open_regular(
            self._at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=self._descriptor
        )

    def read(self, name: str, limit: int) -> bytes:
        """Read a regular file of at most `limit` bytes."""
        return read_bytes(self._at(name), limit, dir_fd=self._descriptor)

    def write(
        self, name: str, data: bytes, *, durable: bool = True, mode: int | None = None
    ) -> None:
        """Replace a file atomically: readers see the old file or the new one.

        `durable` also survives power loss. Without a `mode` it is as open as the folder.
        """
        temporary = f".{name}.{os.urandom(6).hex()}.tmp"
        wanted = file_mode(self.mode) if mode is None else mode
        try:
            with os.fdopen(self.create(temporary, wanted), "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(
                self._at(temporary),
                self._at(name),
                src_dir_fd=self._descriptor,
                dst_dir_fd=self._descriptor,
            )
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self._at(temporary), dir_fd=self._descriptor)
            raise

    def make_read_only(self, name: str) -> None:
        """Take the right to write to a file from everyone."""
        descriptor = open_regular(self._at(name), dir_fd=self._descriptor)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o444
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def status(self, name: str) -> os.stat_result:
        """Return the stat result of an entry, for a link that of the link itself.

        Raises FileNotFoundError when the entry is missing.
        """
        return os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)

    def entries(self) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of the folder, in no order."""
        if self._descriptor is None:
            with os.scandir(self.path) as found:
                yield from found
            return
        # Of a descriptor of its own: two walks of one open folder would share where they are.
        descriptor = os.open(".", _FOLDER_FLAGS, dir_fd=self._descriptor)
        try:
            with os.scandir(descriptor) as found:
                yield from found
        finally:
            os.close(descriptor)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path, with `/`, and the stat result of each regular file below, in order.

        Links, unreadable entries, and entries deeper than a path can say are left out.
        """
        todo = [""]
        while todo:
            below = todo.pop()
            with (
                contextlib.suppress(OSError),
                _open(below or ".", self.path / below, self._descriptor) as folder,
            ):
                inner = []
                for entry in sorted(folder.entries(), key=lambda entry: entry.name):
                    path = f"{below}/{entry.name}" if below else entry.name
                    status = folder.status(entry.name)
                    if stat.S_ISDIR(status.st_mode):
                        inner.append(path)
                    elif stat.S_ISREG(status.st_mode):
                        yield path, status
                todo += reversed(inner)

    def move(self, name: str, to: Directory, new: str) -> None:
        """Move an entry to another open folder on the same disk; of a link, the link itself."""
        os.rename(
            self._at(name), to._at(new), src_dir_fd=self._descriptor, dst_dir_fd=to._descriptor
        )

    def remove(self, name: str) -> None:
        """Delete an entry, and a folder with its contents; a link goes, its destination stays.

        Folders may have any depth: each one is moved up before it is emptied.
        """
        todo = [name]
        while todo:
            each = todo.pop()
            if not stat.S_ISDIR(self.status(each).st_mode):
                os.unlink(self._at(each), dir_fd=self._descriptor)
                continue
            with self.folder(each) as folder:
                for entry in list(folder.entries()):
                    if stat.S_ISDIR(folder.status(entry.name).st_mode):
                        todo.append(f"{_GONE}{os.urandom(8).hex()}")
                        folder.move(entry.name, self, todo[-1])
                    else:
                        os.unlink(folder._at(entry.name), dir_fd=folder._descriptor)
            os.rmdir(self._at(each), dir_fd=self._descriptor)

    def _at(self, name: str) -> str:
        """Return the name for the system: bare beside a descriptor, else with the folder's path."""
        if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise ValueError(f"{name!r} is no name of an entry")
        return name if self._descriptor is not None else os.path.join(self.path, name)


def open_directory(path: Path | str, *, follow: bool = False) -> Directory:
    """Open a folder. Raises OSError when the path is no folder.

    A link to a folder counts only with `follow`, for paths that the user gave.
    """
    return _open(os.fspath(path), Path(path), None, follow=follow)


def make_directory(path: Path, mode: int | None = None) -> None:
    """Make a folder, and those above it that are not there; umask narrows their permissions.

    Without a mode they are as open as the folder that they are made in.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    wanted = stat.S_IMODE(path.stat().st_mode) & 0o777 if mode is None else mode
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, wanted)
    if missing and not missing[0].is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "something else is in its place", str(missing[0]))


def discard(path: Path) -> None:
    """Delete what was made and is not wanted any more, as far as that can be done."""
    with contextlib.suppress(OSError), open_directory(path.parent, follow=True) as folder:
        folder.remove(path.name)


def file_mode(folder_mode: int) -> int:
    """Return the permissions of a file in a folder with these: as open as the folder is.

    >>> [oct(file_mode(mode)) for mode in (0o700, 0o2770, 0o755)]
    ['0o600', '0o660', '0o644']
    """
    return folder_mode & 0o666


def create_file(path: Path | str, *, exclusive: bool = True) -> int:
    """Make a file that is as open as its folder, and return its descriptor for reading and writing.

    With `exclusive` it must not be there; else what it holds is given up.
    """
    flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
    mode = file_mode(stat.S_IMODE(os.stat(os.path.dirname(path) or ".").st_mode))
    return open_regular(path, flags, mode)


def _open(name: str, path: Path, dir_fd: int | None, *, follow: bool = False) -> Directory:
    if not _HAS_HANDLES:
        kind = kind_of_mode(os.stat(path, follow_symlinks=follow).st_mode)
        if kind != "a folder":
            raise LinkedFolderError(NotADirectoryError(errno.ENOTDIR, ""), kind or "a file", path)
        return Directory(path, None)
    try:
        return Directory(
            path, os.open(name, _FOLDER_FLAGS | (0 if follow else _NOFOLLOW), dir_fd=dir_fd)
        )
    except OSError as error:
        kind = "a folder"
        with contextlib.suppress(OSError):
            kind = (
                kind_of_mode(os.stat(name, dir_fd=dir_fd, follow_symlinks=follow).st_mode)
                or "a file"
            )
        if kind != "a folder":
            raise LinkedFolderError(error, kind, path) from None
        raise
