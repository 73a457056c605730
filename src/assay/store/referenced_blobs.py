"""Blobs that a run needs: all digests in its records, and all in the trees among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from assay.core.errors import RecordError
from assay.core.ports import Blobs
from assay.core.regular_file import read_bytes
from assay.formats import run_file
from assay.formats.event_log import MAX_BYTES
from assay.formats.json_codec import parse_json
from assay.store.artifacts import INDEX_NAME
from assay.store.layout import RunFolder

NAMING_FILES = (
    *(run_file.FILE_NAME, "events.jsonl", "edits.jsonl"),
    f"artifacts/{INDEX_NAME}",
)
"""Files of a record, by their relative names, in which digests of kept blobs stand."""

# Looked for as text, not by the fields that are known today: what a newer format names is not
# thrown away.
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def named_digests(folder: RunFolder) -> set[str]:
    """Return every digest in the records of a run; OSError when one cannot be read."""
    found: set[str] = set()
    for name in NAMING_FILES:
        found.update(digests_in(_bytes(folder.path / name)))
    return found


def reachable(digests: Iterable[str], blobs: Blobs) -> set[str]:
    """Of `digests` those that are kept, with all that the trees among them name."""
    return follow_blobs(
        digests, lambda digest: _of_tree(blobs, digest) if digest in blobs else None
    )


def follow_blobs(
    digests: Iterable[str], named_by: Callable[[str], Iterable[str] | None]
) -> set[str]:
    """Return `digests` and all that they lead to; `named_by` is None for what is not kept."""
    found: set[str] = set()
    todo = list(digests)
    while todo:
        digest = todo.pop()
        if digest in found or (inner := named_by(digest)) is None:
            continue
        found.add(digest)
        todo += inner
    return found


def find_unshared(digest: str, folder: RunFolder, blobs: Blobs) -> list[str]:
    """Return what a blob alone names: no record beside `folder`, and not that one."""
    others = set[str]()
    for run in folder.path.parent.iterdir():
        others |= named_digests(RunFolder(run)) if run.is_dir() else set()
    return sorted(reachable([digest], blobs) - reachable(others, blobs))


def _of_tree(blobs: Blobs, digest: str) -> list[str]:
    try:
        return digests_in_tree(blobs.get(digest))
    except (RecordError, KeyError):
        return []


def digests_in_tree(data: bytes) -> list[str]:
    """Return the digests that a blob names if it is a tree, none for any other blob."""
    try:
        is_tree = data.startswith(b'{"format":') and isinstance(parse_json(data), dict)
    except ValueError:
        return []
    return list(digests_in(data)) if is_tree else []


def digests_in(data: bytes) -> Iterator[str]:
    """Yield whatever has the form of a digest in the bytes of a record."""
    return (found[0].decode("ascii") for found in _DIGEST.finditer(data))


def _bytes(path: Path) -> bytes:
    try:
        return read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        return b""
