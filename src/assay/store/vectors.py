"""Work on many numbers at once while metrics are read: numpy, imported where it is first used."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from assay.formats import frames, metrics_file
from assay.formats.metrics_reader import Vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FEW = 64
"""So few numbers are spread faster one by one."""
_FEW_FRAMES = 128
_MOST_FRAMES = 8192
_MOST_FRAME_BYTES = 128
"""Checksums of longer frames are faster one by one."""


def spread_one_by_one(numbers: memoryview, base: int, factor: int) -> array[int]:
    """Return `base + factor * each` without numpy."""
    return array("q", [base + factor * each for each in numbers])


def _spread(numbers: memoryview, base: int, factor: int) -> array[int]:
    if len(numbers) <= _FEW:
        return spread_one_by_one(numbers, base, factor)
    import numpy as np

    return array("q", (np.asarray(numbers).astype(np.int64) * factor + base).tobytes())


def _count_intact(data: memoryview, frame_bytes: int) -> int:
    """Return what `frames.count_intact_frames` does, where many short frames follow each other."""
    first = frames.count_intact_frames(data[: _FEW_FRAMES * frame_bytes], frame_bytes)
    if first < _FEW_FRAMES:
        return first
    if frame_bytes > _MOST_FRAME_BYTES:
        return first + frames.count_intact_frames(data[first * frame_bytes :], frame_bytes)
    import numpy as np

    all_bytes = np.frombuffer(data, np.uint8).reshape(-1, frame_bytes)
    words = np.frombuffer(data, "<u4").reshape(-1, frame_bytes // 4)
    zero, tables = _crc_tables(frame_bytes - 4)
    begin, rows = first, _FEW_FRAMES
    while begin < len(words):
        rows = min(2 * rows, _MOST_FRAMES)  # few are looked at in vain where the frames end
        part = slice(begin, begin + rows)
        crc = np.full(len(words[part]), zero, np.uint32)
        for place, table in enumerate(tables, 4):
            crc ^= table.take(all_bytes[part, place])
        wrong = (crc != words[part, 0]) | (words[part, 1] != words[0, 1])
        if wrong.any():
            return begin + int(wrong.argmax())
        begin += len(crc)
    return len(words)


def pack_offsets(numbers: Sequence[int], unit: int) -> tuple[int, bytes]:
    """Return what `metrics_file.pack_offsets` does."""
    import numpy as np

    known = np.asarray(numbers, np.int64)
    base = int(known.min())
    if int(known.max()) - base <= metrics_file.MAX_STEP * unit:
        multiples = (known - base) // unit
        if (multiples * unit + base == known).all():
            return base, multiples.astype("<u4").tobytes()
    return base, known.astype("<i8").tobytes()


def bounds(column: Sequence[float]) -> tuple[float, float]:
    """Return what `metrics_file.bounds` does."""
    import numpy as np

    values = np.asarray(column)
    return float(np.fmin.reduce(values)), float(np.fmax.reduce(values))


@lru_cache
def _crc_tables(count: int) -> tuple[int, NDArray[np.uint32]]:
    """Return the crc32 of `count` zeros, and what each value of each byte adds to it by xor."""
    import numpy as np

    last = np.array([crc32(bytes([value])) ^ crc32(b"\0") for value in range(256)], np.uint32)
    tables = np.empty((count, 256), np.uint32)
    table: NDArray[Any] = last
    for place in reversed(range(count)):
        tables[place] = table
        table = (table >> 8) ^ last[table & 0xFF]
    return crc32(bytes(count)), tables


ONE_BY_ONE = Vectors(spread_one_by_one)
FAST = Vectors(_spread, _count_intact)
