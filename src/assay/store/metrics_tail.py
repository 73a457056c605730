"""Follower of an open `metrics.bin`, which reads only what was written since the last time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from assay.core.errors import RecordError
from assay.core.regular_file import open_regular
from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.frames import Damage
from assay.formats.run_file import Summary
from assay.store.chunk_stream import fill
from assay.store.series import MAX_BYTES, Gathered, Series, series_of
from assay.store.summaries import Fold
from assay.store.vectors import FAST


class Tail:
    """The curves of one file as far as they were read. Any thread may ask.

    A file that was replaced (compacted at the end of its run) or cut off is read from its beginning
    again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._inode = 0
        self._begin()

    def _begin(self) -> None:
        self._gathered = Gathered()
        self._reader = metrics_reader.RowReader(FAST)
        self._size = 0
        self._rows = 0
        self._summaries: dict[str, Summary] | None = None

    @property
    def rows(self) -> int:
        """Number of log calls read so far; it shrinks only when the file was replaced."""
        return self._rows

    def update(self) -> bool:
        """Read what is new, and return whether there was anything."""
        with self._lock:
            try:
                with open(open_regular(self._path), "rb") as file:
                    return self._read(file.fileno())
            except (OSError, RecordError):  # it is damaged, which whoever looks at the run is told
                return False

    def series(
        self, names: Iterable[str] | None = None, *, branches: bool = False
    ) -> dict[str, Series]:
        """Return the curves as they are now, as copies."""
        with self._lock:
            found = series_of(self._gathered.contents(), names=names, branches=branches)
            return {name: _copy(each) for name, each in found.items()}

    def summaries(self) -> dict[str, Summary]:
        """Return the summary of each metric over the current branch."""
        with self._lock:
            if self._summaries is None:
                fold = Fold()
                for block in self._gathered.contents().blocks:
                    curve = block.on_curve()
                    if curve.steps:
                        fold.add(curve.keys.names, curve.steps, curve.columns, curve.last_key)
                self._summaries = fold.summaries()
            return self._summaries

    def _read(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        if status.st_ino != self._inode or status.st_size < self._reader.offset:
            self._begin()
            self._inode = status.st_ino
        offset, size = self._reader.offset, status.st_size
        if size > MAX_BYTES:
            return False
        # Preallocated space holds zeros: most looks find nothing new, and need no more than one
        # word.
        if size == self._size and not any(os.pread(descriptor, 8, offset)):
            return False
        # Memory that nobody touches is none: what was read before is a hole in front of what is
        # read now.
        data = memoryview(bytearray(size))
        if fill(descriptor, data, 0, frames.FILE_HEAD_BYTES) < frames.FILE_HEAD_BYTES or not any(
            data[:8]
        ):
            return False
        fill(descriptor, data, offset, size)
        self._size = size
        is_new = False
        if offset == frames.FILE_HEAD_BYTES:
            frames.check_file_head(data, metrics_file.FORM, where=str(self._path))
        for row in self._reader.read(data):
            # A frame that is written at this very moment looks torn. The reader stays in front of
            # it.
            if isinstance(row, Damage):
                continue
            is_new = True
            self._gathered.add(row)
            self._rows += (
                len(row.steps) if isinstance(row, metrics_file.Rows | metrics_file.Chunk) else 1
            )
        if is_new:
            self._summaries = None
        return is_new


def _copy(series: Series) -> Series:
    axis_values = series.axis_values
    return replace(
        series,
        steps=series.steps.copy(),
        times_ns=series.times_ns.copy(),
        values=series.values.copy(),
        branches=series.branches.copy(),
        axis_values=None if axis_values is None else axis_values.copy(),
    )
