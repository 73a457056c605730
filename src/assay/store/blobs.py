"""Bytes kept by content in a folder: once each, never changed, checked when read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from assay.core.directory import Directory, make_directory, open_directory
from assay.core.errors import RecordError
from assay.core.regular_file import open_regular, read_bytes
from assay.store.layout import refusal

MAX_BYTES = 1 << 30
"""Largest blob that is read whole, as code, pictures and tables are."""

_BLOCK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FileBlobs:
    """Blobs in a folder: one read-only file each, at `<first two hex digits>/<the others>`.

    `mode` is for the folder if it is made; without one it is as open as the folder that it is made
    in. What is written and deleted stays inside of it: no link is followed.
    """

    def __init__(self, folder: Path, *, mode: int | None = None) -> None:
        self.folder = folder
        self._mode = mode

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if not self.path(digest).exists():
            try:
                with self._open() as folder:
                    temporary, descriptor = _new_file(folder)
                    try:
                        with os.fdopen(descriptor, "wb") as file:
                            file.write(data)
                        _put_in_place(folder, temporary, digest)
                    except BaseException:  # raised again, Ctrl-C included: no half file stays
                        _remove(folder, temporary)
                        raise
            except OSError as error:
                raise refusal(error, self.path(digest), "The file cannot be kept") from error
        return digest

    def put_file(self, source: Path, *, follow: bool = False) -> tuple[str, int]:
        """Keep a copy of a file; return digest and bytes. OSError when it is unreadable."""
        digest = hashlib.sha256()
        size = 0
        with open(open_regular(source, follow=follow), "rb") as file:
            try:
                with self._open() as folder:
                    temporary, descriptor = _new_file(folder)
                    try:
                        with os.fdopen(descriptor, "wb") as out:
                            while block := file.read(_BLOCK_BYTES):
                                digest.update(block)
                                size += len(block)
                                out.write(block)
                        _put_in_place(folder, temporary, digest.hexdigest())
                    except BaseException:  # raised again, Ctrl-C included: no half file stays
                        _remove(folder, temporary)
                        raise
            except OSError as error:
                raise refusal(error, self.folder, "The file cannot be kept") from error
        return digest.hexdigest(), size

    def get(self, digest: str, *, limit: int = MAX_BYTES) -> bytes:
        path = self.path(digest)
        try:
            data = read_bytes(path, limit)
        except FileNotFoundError:
            raise KeyError(digest) from None
        except OSError as error:
            raise RecordError(
                f"A kept file cannot be read: {error.strerror or error}.", where=str(path)
            ) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise RecordError("A kept file is damaged: its content has changed.", where=str(path))
        return data

    def discard(self, digests: Iterable[str]) -> int:
        """Delete blobs, as far as they are here; return how many bytes they had."""
        size = 0
        with contextlib.suppress(FileNotFoundError), open_directory(self.folder) as folder:
            for digest in digests:
                with (
                    contextlib.suppress(FileNotFoundError),
                    folder.folder(self.path(digest).parent.name) as inner,
                ):
                    name = self.path(digest).name
                    size += inner.status(name).st_size
                    inner.remove(name)
        return size

    def __contains__(self, digest: str) -> bool:
        return bool(_DIGEST.fullmatch(digest)) and self.path(digest).exists()

    def digests(self) -> Iterator[str]:
        """Everything that is kept. OSError when the folder is a link, or cannot be read."""
        with contextlib.suppress(FileNotFoundError), open_directory(self.folder) as folder:
            for name in sorted(entry.name for entry in folder.entries() if len(entry.name) == 2):
                with contextlib.suppress(OSError), folder.folder(name) as inner:
                    for entry in inner.entries():
                        if _DIGEST.fullmatch(name + entry.name) and stat.S_ISREG(
                            inner.status(entry.name).st_mode
                        ):
                            yield name + entry.name

    def path(self, digest: str) -> Path:
        """Return the path of the bytes of `digest`, whether they are there or not."""
        if not _DIGEST.fullmatch(digest):
            raise KeyError(digest)
        return self.folder / digest[:2] / digest[2:]

    def _open(self) -> Directory:
        make_directory(self.folder, self._mode)
        return open_directory(self.folder)


def _new_file(folder: Directory) -> tuple[str, int]:
    # A name of its own each time: two processes may put the same bytes at the same moment.
    name = f".{os.urandom(8).hex()}.tmp"
    return name, folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def _put_in_place(folder: Directory, temporary: str, digest: str) -> None:
    """Give a file that is written its name, and take away the right to write to it."""
    folder.make_read_only(temporary)
    with folder.folder(digest[:2], create=True) as inner:
        folder.move(temporary, inner, digest[2:])


def _remove(folder: Directory, name: str) -> None:
    with contextlib.suppress(OSError):
        folder.remove(name)
