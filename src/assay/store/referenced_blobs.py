"""Blobs that a run needs: all digests in its records, and all in the trees among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from assay.core.errors import RecordError
from assay.core.event_log import MAX_BYTES
from assay.core.json_codec import parse_json
from assay.core.ports import Blobs
from assay.core.regular_file import read_bytes
from assay.store.artifacts import INDEX_NAME
from assay.store.layout import RunFolder

# Looked for as text, not by the fields that are known today: what a newer format names is not
# thrown away.
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def named_digests(folder: RunFolder) -> set[str]:
    """Return every digest in the records of a run; OSError when one cannot be read."""
    found: set[str] = set()
    for path in (folder.run_json, folder.events, folder.edits, folder.artifacts / INDEX_NAME):
        found.update(_digests(_bytes(path)))
    return found


def reachable(digests: Iterable[str], blobs: Blobs) -> set[str]:
    """Of `digests` those that are kept, with all that the trees among them name."""
    found: set[str] = set()
    todo = list(digests)
    while todo:
        digest = todo.pop()
        if digest in found or digest not in blobs:
            continue
        found.add(digest)
        todo += _of_tree(blobs, digest)
    return found


def unshared(digest: str, folder: RunFolder, blobs: Blobs) -> list[str]:
    """Return what a blob alone names: no record beside `folder`, and not that one."""
    others = set[str]()
    for run in folder.path.parent.iterdir():
        others |= named_digests(RunFolder(run)) if run.is_dir() else set()
    return sorted(reachable([digest], blobs) - reachable(others, blobs))


def _of_tree(blobs: Blobs, digest: str) -> list[str]:
    try:
        data = blobs.get(digest)
        if not data.startswith(b'{"format":') or not isinstance(parse_json(data), dict):
            return []
    except (RecordError, ValueError, KeyError):
        return []
    return list(_digests(data))


def _digests(data: bytes) -> Iterator[str]:
    return (found[0].decode("ascii") for found in _DIGEST.finditer(data))


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        return b""
