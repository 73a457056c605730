"""Reader of the folder `metrics`, of any length in little memory, which may grow between reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.directory import Directory, open_directory
from assay.core.errors import RecordError
from assay.core.regular_file import FileTooLargeError
from assay.formats.metrics_file import (
    MAX_NAMES_BYTES,
    NAMES_FILE,
    DamagedRows,
    KeySet,
    MetricNames,
    Rewind,
    row_bytes,
    values_of_file,
)
from assay.store.row_scan import scan_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_BYTES = 16 << 30
"""Of one file. What is larger is damaged, or made to fill the memory of whoever looks."""
WINDOW_BYTES = 1 << 25
_OLD_FILE = "metrics.bin"

Part = tuple[KeySet, "NDArray[np.void]"]
"""Rows of one set of names, in their order within a file."""


class ChangedError(Exception):
    """A file was cut off or replaced since it was read: all has to be read again."""


class MetricsReader:
    """Reader of the files of a run, each from where the last read has ended.

    `damages` are found on the way; `read` tells what is torn at the end only when asked to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = MetricNames(str(folder))
        self.damages: list[DamagedRows] = []
        self.rows: dict[int, int] = {}
        """Intact rows read so far, by number of values."""
        self.nameless = 0
        """Rows whose names are lost."""
        self._read: dict[str, tuple[int, int]] = {}

    def read(self, *, to_end: bool = False) -> Iterator[NDArray[np.void]]:
        """Yield the new rows in windows, each of rows of one length.

        RecordError where a file cannot be read, ChangedError where one is not as it was. With
        `to_end` what follows the last intact row is damage, and nothing is read behind it later.
        """
        try:
            with open_directory(self.folder) as folder:
                self._read_names(folder)
                for name in sorted(entry.name for entry in folder.entries()):
                    if (values := values_of_file(name)) is not None:
                        yield from self._read_rows(folder, name, values, to_end=to_end)
        except FileNotFoundError:
            refuse_old(self.folder)
        except OSError as error:
            raise RecordError(
                f"The metrics cannot be read: {error.strerror or error}.", where=str(self.folder)
            ) from error

    def split(self, rows: NDArray[np.void]) -> Iterator[Part]:
        """Yield rows by set of names; those of lost names are counted as damage."""
        import numpy as np

        if not len(rows):
            return
        numbers = rows["set"]
        if (numbers == numbers[0]).all():
            groups: Iterable[tuple[int, NDArray[np.void]]] = [(int(numbers[0]), rows)]
        else:
            order = np.argsort(numbers, kind="stable")
            ordered = numbers[order]
            starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] ^ 1))
            parts = np.split(rows[order], starts[1:])
            groups = zip(ordered[starts].tolist(), parts, strict=True)
        values = rows.dtype["values"].shape[0]
        by_keys: dict[KeySet, list[NDArray[np.void]]] = {}
        for number, part in groups:
            keys = self.names.sets.get(number)
            if keys is not None and len(keys.names) <= values:
                by_keys.setdefault(keys, []).append(part)
            else:
                self.nameless += len(part)
        for keys, parts in by_keys.items():
            yield keys, parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read_names(self, folder: Directory) -> None:
        try:
            descriptor = folder.open(NAMES_FILE)
        except FileNotFoundError:
            return
        try:
            start = self._start(NAMES_FILE, descriptor)
            size = os.fstat(descriptor).st_size
            if size > MAX_NAMES_BYTES:
                raise FileTooLargeError(size, MAX_NAMES_BYTES, NAMES_FILE)
            data = _read_at(descriptor, start, size - start)
            self._advance(NAMES_FILE, self.names.add(data))
        finally:
            os.close(descriptor)

    def _read_rows(
        self, folder: Directory, name: str, values: int, *, to_end: bool
    ) -> Iterator[NDArray[np.void]]:
        import numpy as np

        descriptor = folder.open(name)
        try:
            start = self._start(name, descriptor)
            size = os.fstat(descriptor).st_size
            if size > MAX_BYTES:
                raise FileTooLargeError(size, MAX_BYTES, name)
            rest = b""
            while start < size:
                more = _read_at(descriptor, start + len(rest), min(WINDOW_BYTES, size - start))
                data = rest + more if rest else more
                is_last = start + len(data) >= size or not more
                if len(data) < row_bytes(values) and is_last:
                    break
                self._read_names(folder)  # a set is defined before its first row is written
                parts, end = [], 0
                for item in scan_rows(data, values, list(self.names.sets), is_last=is_last):
                    if isinstance(item, tuple):
                        self._damage(name, start + item[0], start + item[1])
                        end = item[1]
                    else:
                        parts.append(item)
                        end += item.nbytes
                start += end
                self._advance(name, end)
                rest = data[end:]
                if parts:
                    found = parts[0] if len(parts) == 1 else np.concatenate(parts)
                    self.rows[values] = self.rows.get(values, 0) + len(found)
                    yield found
                if is_last:
                    break
            if to_end and start < size:
                self._damage(name, start, size, torn=size - start < row_bytes(values))
        finally:
            os.close(descriptor)

    def _start(self, name: str, descriptor: int) -> int:
        """Return where to read on; ChangedError where the file is another, or shorter."""
        status = os.fstat(descriptor)
        inode, start = self._read.setdefault(name, (status.st_ino, 0))
        if inode != status.st_ino or status.st_size < start:
            raise ChangedError
        return start

    def _advance(self, name: str, count: int) -> None:
        inode, start = self._read[name]
        self._read[name] = (inode, start + count)

    def _damage(self, name: str, begin: int, end: int, *, torn: bool = False) -> None:
        last = self.damages[-1] if self.damages else None
        if last is not None and (last.file, last.end) == (name, begin):
            begin = self.damages.pop().begin
        self.damages.append(DamagedRows(name, begin, end, torn))


def _read_at(descriptor: int, start: int, count: int) -> bytes:
    """Read so many bytes, fewer only where the file ends."""
    parts = []
    os.lseek(descriptor, start, os.SEEK_SET)
    while count > 0 and (part := os.read(descriptor, count)):
        parts.append(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def refuse_old(folder: Path) -> None:
    """Raise RecordError where a record has its metrics in the file of an earlier version."""
    if (folder.parent / _OLD_FILE).is_file():
        raise RecordError(
            f"The metrics are in {_OLD_FILE}, as an earlier version of assay wrote them.",
            where=str(folder.parent / _OLD_FILE),
            fix="Read the run with that version.",
        )


Repeats = set[tuple[int, KeySet]]
"""Numbers of rewinds at whose very step a set of names was logged again."""


def find_repeats(rewinds: list[Rewind], parts: Iterable[Part]) -> Repeats:
    """Return which sets were logged again at the step of a rewind, before the next rewind."""
    repeats: Repeats = set()
    for keys, rows in parts:
        for i, rewind in enumerate(rewinds):
            if (i, keys) in repeats:
                continue
            again = (rows["step"] == rewind.step) & (rows["place"] >= rewind.place)
            if i + 1 < len(rewinds):
                again &= rows["place"] < rewinds[i + 1].place
            if again.any():
                repeats.add((i, keys))
    return repeats


def branches_of(part: Part, rewinds: list[Rewind], repeats: Repeats) -> NDArray[np.int64]:
    """Return the branch of each row: 0 on the curve, else the attempt that went back behind it.

    A row leaves the curve with the first later rewind to a step before its own.
    """
    import numpy as np

    keys, rows = part
    branches = np.full(len(rows), keys.branch, np.int64)
    for i, rewind in enumerate(rewinds):
        is_again = (i, keys) in repeats or not {*rewind.stopped}.isdisjoint(keys.names)
        first = rewind.step if is_again else rewind.step + 1
        leaves = (rows["place"] < rewind.place) & (rows["step"] >= first) & (branches == 0)
        branches[leaves] = rewind.attempt
    return branches


def read_windows(folder: Path) -> Iterator[tuple[Part, NDArray[np.int64]]]:
    """Yield all rows and their branches, a window at a time."""
    reader = MetricsReader(folder)
    windows = reader.read()
    first = next(windows, None)  # by then all rewinds are known
    repeats: Repeats = set()
    if reader.names.rewinds:
        again = MetricsReader(folder)
        repeats = find_repeats(
            reader.names.rewinds, (part for rows in again.read() for part in again.split(rows))
        )
    while first is not None:
        for part in reader.split(first):
            yield part, branches_of(part, reader.names.rewinds, repeats)
        first = next(windows, None)
