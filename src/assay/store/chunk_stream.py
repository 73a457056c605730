"""Rows of a `metrics.bin` of any length in little memory: by column, in the order of the file."""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.regular_file import open_regular
from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.frames import Damage, Extent
from assay.formats.metrics_file import Chunk, KeySet, Rewind, Row, Rows
from assay.store.vectors import FAST

WINDOW_BYTES = 1 << 21
"""So much of a file is read at a time: four times the longest frame."""
_PEEK_BYTES = frames.FILE_HEAD_BYTES + frames.EXTENT_HEAD_BYTES
_FEW = 64
"""So few numbers are looked at faster one by one."""


def read_windows(path: Path) -> Iterator[Rows | Row | Rewind | Chunk | Damage]:
    """Yield what `read_rows` does; an item may be used until the next one is asked for."""
    with open(open_regular(path), "rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if size <= frames.FILE_HEAD_BYTES:
            yield from metrics_reader.read_rows(os.pread(descriptor, size, 0), where=str(path))
            return
        # Memory that nobody touches is none: only what lies in the window takes some.
        memory = mmap.mmap(-1, size)
        view = memoryview(memory)
        reader = metrics_reader.RowReader(FAST)
        end = fill(descriptor, view, 0, min(size, _PEEK_BYTES))
        damage = frames.check_file_head(view[:end], metrics_file.FORM, where=str(path))
        if damage is not None:
            yield damage
        told = 0
        while True:
            for item in reader.read(view[:end]):
                if isinstance(item, Damage):
                    # What the window cuts off looks torn, and is read again with what follows.
                    if item.end <= told or (item.torn and end < size):
                        continue
                    told = item.end
                yield item
            if end >= size:
                return
            if hasattr(memory, "madvise"):
                before = reader.offset // mmap.PAGESIZE * mmap.PAGESIZE
                memory.madvise(mmap.MADV_DONTNEED, 0, before)
            begin, end = end, min(size, _next_end(end, reader.extent))
            fill(descriptor, view, begin, end)


def _next_end(end: int, extent: Extent | None) -> int:
    """Return how far to read next: to the end of an extent, which cuts off no frame."""
    if extent is not None and end < extent.end:
        return min(extent.end, end + WINDOW_BYTES)
    is_known = extent is not None and end == extent.end
    return end + (frames.EXTENT_HEAD_BYTES if is_known else WINDOW_BYTES)


def fill(descriptor: int, view: memoryview, start: int, end: int) -> int:
    """Read the bytes from `start` to `end` into their place, and return where the file ended."""
    while start < end and (count := os.preadv(descriptor, [view[start:end]], start)):
        start += count
    return start


class RewoundError(Exception):
    """There is a rewind that the outline does not know."""


@dataclass(slots=True)
class Outline:
    """Outline of a file, which has to be known before its rows are put in order.

    `rows` by key set, of all branches. `repeats`: the rewinds, by number, at whose very step a key
    set was logged again. `is_placed`: whether times do not tell the order of the rows.
    """

    rows: dict[KeySet, int] = field(default_factory=dict)
    rewinds: list[Rewind] = field(default_factory=list)
    repeats: set[tuple[int, KeySet]] = field(default_factory=set)
    is_placed: bool = False
    is_damaged: bool = False

    def branches(self, keys: KeySet, steps: Sequence[int], passed: int) -> NDArray[np.int64] | None:
        """Return the branch of each row that lies behind so many rewinds; None: all on the curve.

        A row leaves the curve with the first later rewind to a step before its own.
        """
        found = None
        for number, rewind in enumerate(self.rewinds[passed:], passed):
            numbers = np.asarray(steps, np.int64)
            is_again = (number, keys) in self.repeats
            leaves = numbers >= rewind.step if is_again else numbers > rewind.step
            if leaves.any():
                found = np.zeros(len(numbers), np.int64) if found is None else found
                found[leaves & (found == 0)] = rewind.attempt
        return found


def read_outline(path: Path) -> Outline:
    """Read a whole file once, without keeping its rows; RecordError for too many metrics."""
    outline = Outline()
    columns = 0
    last_ns = -(1 << 63)
    for item in read_windows(path):
        match item:
            case Damage():
                outline.is_damaged = True
            case Rewind():
                outline.rewinds.append(item)
            case _:
                chunk = _chunk_of(item, None)
                if chunk.keys not in outline.rows:
                    columns += len(chunk.keys.names)
                    metrics_file.check_columns(columns, where=str(path))
                    outline.rows[chunk.keys] = 0
                    outline.is_placed |= len(outline.rows) > 1
                outline.rows[chunk.keys] += len(chunk.steps)
                if not outline.is_placed:
                    outline.is_placed = not _is_rising(last_ns, chunk.times_ns)
                    last_ns = chunk.times_ns[-1]
                last = (len(outline.rewinds) - 1, chunk.keys)
                if (
                    outline.rewinds
                    and not chunk.branch
                    and last not in outline.repeats
                    and outline.rewinds[-1].step in chunk.steps
                ):
                    outline.repeats.add(last)
    return outline


def read_chunks(path: Path, outline: Outline) -> Iterator[Chunk]:
    """Yield all rows but those that damage has taken, each chunk of one branch and of any length.

    Where times do not tell the order, rows have places, but for those of an older file, which come
    before all others. A chunk may be used until the next one is asked for.
    """
    order = passed = 0
    for item in read_windows(path):
        match item:
            case Damage():
                continue
            case Rewind():
                passed += 1
                if passed > len(outline.rewinds):
                    raise RewoundError
                continue
            case Chunk():
                chunk = item if outline.is_placed else replace(item, places=None)
                last = max(item.places) if item.places is not None else 0
                order = max(order + len(item.steps), last + 1)
            case Rows() | Row():
                rows = 1 if isinstance(item, Row) else len(item.steps)
                chunk = _chunk_of(item, range(order, order + rows) if outline.is_placed else None)
                order += rows
        branches = None
        if not chunk.branch:
            branches = outline.branches(chunk.keys, chunk.steps, passed)
        yield from [chunk] if branches is None else split_branches(chunk, branches)


def _chunk_of(item: Rows | Row | Chunk, places: Sequence[int] | None) -> Chunk:
    match item:
        case Chunk():
            return item
        case Rows():
            return Chunk(item.keys, 0, item.steps, item.times_ns, item.columns, places)
        case Row():
            columns = tuple(array("d", [value]) for value in item.values)
            return Chunk(item.keys, 0, [item.step], [item.time_ns], columns, places)


def split_branches(chunk: Chunk, branches: NDArray[np.int64]) -> Iterator[Chunk]:
    """Yield the rows of each branch."""
    for branch in np.unique(branches).tolist():
        keep = branches == branch

        def take(numbers: Sequence[Any], keep: NDArray[np.bool_] = keep) -> memoryview[Any]:
            return np.asarray(numbers)[keep].data

        yield Chunk(
            chunk.keys,
            branch,
            take(chunk.steps),
            take(chunk.times_ns),
            tuple(take(column) for column in chunk.columns),
            None if chunk.places is None else take(chunk.places),
        )


def _is_rising(first: int, numbers: Sequence[int]) -> bool:
    """Return whether no number is less than the one before it."""
    if first > numbers[0]:
        return False
    if len(numbers) < _FEW:
        return all(a <= b for a, b in pairwise(numbers))
    known = np.asarray(numbers)
    return bool((known[1:] >= known[:-1]).all())
