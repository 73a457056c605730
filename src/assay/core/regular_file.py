"""Safe access to the regular files of a record: no links, pipes or devices, and a size limit.

A record may come from anywhere. In the place of one of its files there may be a link to a file of
the user, a named pipe without a writer, a device, or a sparse file of a terabyte. Each of these
raises an OSError that names it.
"""

from __future__ import annotations

import errno
import os
import stat

from assay.core.formatting import size

Place = str | os.PathLike[str]

_SAFELY = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_READ_BYTES = 1 << 20
_HOLLOW_BYTES = 1 << 30
_NOT_A_FILE = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.ENODEV)
"""Errors of opening a link that is not followed (ELOOP, on BSD EMLINK), or a pipe or socket."""


class NotRegularFileError(OSError):
    """Something else than a file is in the place of a file."""

    def __init__(self, kind: str, path: Place) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a file", os.fspath(path))
        self.kind = kind


class FileTooLargeError(OSError):
    """A file is larger than what it is for can need."""

    def __init__(self, size_bytes: int, limit: int, path: Place) -> None:
        what = f"it has {size(size_bytes)}, and at most {size(limit)} are read"
        super().__init__(errno.EFBIG, what, os.fspath(path))


def file_size(path: Place) -> int:
    """Return the size in bytes, 0 when nothing is there; a link is not followed."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def mtime_ns_of(path: Place) -> int:
    """Return the time of change in ns, 0 when nothing is there; a link is not followed."""
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def open_regular(
    path: Place,
    flags: int = os.O_RDONLY,
    mode: int = 0o600,
    *,
    dir_fd: int | None = None,
    follow: bool = False,
) -> int:
    """Open a regular file and return its descriptor. OSError for anything else.

    A link counts as a file only with `follow`. With `dir_fd` the path is relative to that open
    folder. `mode` is for a new file; umask narrows it.
    """
    if not follow:
        flags |= _NOFOLLOW
    try:
        descriptor = os.open(path, flags | _SAFELY | _BINARY, mode, dir_fd=dir_fd)
    except OSError as error:
        kind = _kind_at(path, dir_fd, follow=follow)
        if kind and error.errno in _NOT_A_FILE:
            raise NotRegularFileError(kind, path) from None
        raise
    try:
        kind = kind_of_mode(os.fstat(descriptor).st_mode)
        may_be_link = not follow and not _NOFOLLOW  # Windows has no such flag
        if not kind and may_be_link and os.path.islink(path):
            kind = "a link"
        if kind:
            raise NotRegularFileError(kind, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refuse_irregular(path: Place) -> None:
    """Raise OSError for all but a regular file, or a link to one, that a library is to open."""
    os.close(open_regular(path, follow=True))


def read_bytes(
    path: Place, limit: int, *, dir_fd: int | None = None, follow: bool = False
) -> bytes:
    """Read a whole regular file of at most `limit` bytes.

    Raises an OSError that names what is there instead, or its size.
    """
    descriptor = open_regular(path, dir_fd=dir_fd, follow=follow)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise FileTooLargeError(size, limit, path)
        return _read(descriptor, size, limit, path)
    finally:
        os.close(descriptor)


def read_start(path: Place, count: int, *, follow: bool = False) -> bytes:
    """Read the first `count` bytes of a regular file of any size, all of it where it is shorter."""
    descriptor = open_regular(path, follow=follow)
    try:
        parts: list[bytes] = []
        while count > 0 and (part := os.read(descriptor, min(count, _READ_BYTES))):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_part(path: Place, start: int, end: int) -> bytes:
    """Read the bytes of a regular file from `start` to `end`; none behind the file's end."""
    with open(open_regular(path), "rb") as file:
        # Seeking fails at places that no file of this disk can have.
        file.seek(min(start, os.fstat(file.fileno()).st_size))
        return file.read(max(0, end - start))


def hollowness(status: os.stat_result) -> str:
    """Return what a large file claims and holds, if it is mostly a hole; "" for any other.

    Such a file is short in an archive, and fills a disk when it is copied.
    """
    held = getattr(status, "st_blocks", status.st_size) * 512
    if status.st_size <= _HOLLOW_BYTES or held >= status.st_size // 2:
        return ""
    return f"it claims {size(status.st_size)} and holds {size(held)}"


def kind_of_mode(mode: int) -> str:
    """Return the kind of an entry of this mode in words, "" for a regular file.

    >>> import stat
    >>> kind_of_mode(stat.S_IFIFO | 0o600), kind_of_mode(stat.S_IFREG)
    ('a named pipe', '')
    """
    return next(
        (kind for is_it, kind in _KINDS if is_it(mode)), "" if stat.S_ISREG(mode) else "no file"
    )


def _read(descriptor: int, expected: int, limit: int, path: Place) -> bytes:
    parts: list[bytes] = []
    total = 0
    # One byte more than its size: a file that has grown since is read on, up to the limit.
    while part := os.read(descriptor, max(expected - total + 1, _READ_BYTES if total else 1)):
        parts.append(part)
        total += len(part)
        if total > limit:
            raise FileTooLargeError(total, limit, path)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _kind_at(path: Place, dir_fd: int | None, *, follow: bool) -> str:
    try:
        return kind_of_mode(os.stat(path, dir_fd=dir_fd, follow_symlinks=follow).st_mode)
    except OSError:
        return ""
