"""Changes of the files in the watched folders of a run: `files.jsonl`, one change a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from assay.core.errors import RecordError
from assay.formats.event_log import read_lines
from assay.formats.json_codec import dataclass_from
from assay.store.layout import RunFolder

FileEvent = Literal["created", "changed", "deleted", "kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """Creation, change or deletion of a file; "kept" tells the hash of an unchanged one.

    `path` begins with the name of the watched folder. `sha256` is "" while the file has not come to
    rest.
    """

    path: str
    event: FileEvent
    size_bytes: int = 0
    sha256: str = ""
    at_ns: int = 0


def file_changes(folder: RunFolder) -> Iterator[FileChange]:
    """The changes in the order in which they were seen. What cannot be read is passed over."""
    try:
        lines = read_lines(folder.files)
    except OSError:
        return
    for data in lines.objects:
        try:
            yield dataclass_from(FileChange, data)
        except RecordError:
            continue


def files_left(folder: RunFolder) -> dict[str, FileChange]:
    """The files that were there at last, by path, each with what was known of it last."""
    left: dict[str, FileChange] = {}
    for change in file_changes(folder):
        if change.event == "deleted":
            left.pop(change.path, None)
        else:
            left[change.path] = change
    return left
