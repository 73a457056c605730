"""Bytes kept by content in a folder: once each, never changed, checked when read."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from assay.core.errors import RecordError
from assay.store.layout import refusal

_BLOCK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FileBlobs:
    """The Blobs port in `folder`: one read-only file a blob, at `<first two hex digits>/<the others>`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        path = self.path(digest)
        if path.exists():
            return digest
        # A name of its own each time: two processes may put the same bytes at the same moment.
        temporary = path.with_name(f".{digest[:8]}.{os.urandom(6).hex()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), 0o444)
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise refusal(error, path, "The file cannot be kept") from error
        return digest

    def put_file(self, source: Path) -> tuple[str, int]:
        """Keep a copy of a file of any size; its digest and its size in bytes. OSError when it cannot be read."""
        digest, size = hashlib.sha256(), 0
        temporary = self.folder / f".file.{os.urandom(6).hex()}.tmp"
        with open(source, "rb") as file:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with open(temporary, "xb") as out:
                    while block := file.read(_BLOCK_BYTES):
                        digest.update(block)
                        size += len(block)
                        out.write(block)
                    os.fchmod(out.fileno(), 0o444)
                path = self.path(digest.hexdigest())
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary, path)
            except OSError as error:
                raise refusal(error, self.folder, "The file cannot be kept") from error
            finally:
                temporary.unlink(missing_ok=True)
        return digest.hexdigest(), size

    def get(self, digest: str) -> bytes:
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise KeyError(digest) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise RecordError("A kept file is damaged: its content has changed.", where=str(path))
        return data

    def __contains__(self, digest: str) -> bool:
        return bool(_DIGEST.fullmatch(digest)) and self.path(digest).exists()

    def digests(self) -> Iterator[str]:
        for path in self.folder.glob("??/*"):
            digest = path.parent.name + path.name
            if _DIGEST.fullmatch(digest):
                yield digest

    def path(self, digest: str) -> Path:
        """Where the bytes of `digest` lie, or would."""
        if not _DIGEST.fullmatch(digest):
            raise KeyError(digest)
        return self.folder / digest[:2] / digest[2:]
