"""Work on many numbers at once while metrics are read: numpy, imported where it is first used."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from assay.formats import frames, metrics_file
from assay.formats.frames import TICK_NS, FrameGroup
from assay.formats.metrics_file import CHUNK_HEAD, PLACES, WIDE_STEPS, WIDE_TIMES, Chunk, KeySet
from assay.formats.metrics_reader import Vectors, fits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FEW = 64
"""So few numbers are spread faster one by one."""
_FEW_FRAMES = 128
_MOST_FRAMES = 8192
_MARK_BYTES = 4
"""Length and tag of a frame, behind its checksum."""
_MOST_FRAME_BYTES = 128
"""Checksums of longer frames are faster one by one."""


def spread_one_by_one(numbers: memoryview, base: int, factor: int) -> array[int]:
    """Return `base + factor * each` without numpy."""
    return array("q", [base + factor * each for each in numbers])


def _spread(numbers: memoryview, base: int, factor: int) -> array[int]:
    if len(numbers) <= _FEW:
        return spread_one_by_one(numbers, base, factor)
    import numpy as np

    return _spread_all(np.asarray(numbers), base, factor)


def _spread_all(numbers: NDArray[np.uint32], base: Any, factor: int) -> array[int]:
    """Return `base + factor * each` in the order of rows; there may be a base for each row."""
    import numpy as np

    found = _copy_all(numbers, "q")
    spread = np.frombuffer(found, np.int64).reshape(numbers.shape)
    if factor != 1:
        spread *= factor
    spread += base
    return found


def _copy_all(numbers: NDArray[Any], kind: str) -> array[Any]:
    """Return numbers as an array, in the order of rows; they are copied once."""
    import numpy as np

    found = array(kind, bytes(8)) * numbers.size
    np.frombuffer(found, kind).reshape(numbers.shape)[...] = numbers
    return found


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
    # All are of the length and the tag of the first: what these add is the same for all.
    head, rest = _MARK_BYTES, 4 + _MARK_BYTES
    for table, value in zip(tables[:head], all_bytes[0, 4:rest], strict=True):
        zero ^= int(table[value])
    begin, rows = first, _FEW_FRAMES
    while begin < len(words):
        rows = min(2 * rows, _MOST_FRAMES)  # few are looked at in vain where the frames end
        part = slice(begin, begin + rows)
        crc = np.full(len(words[part]), zero, np.uint32)
        for place, table in enumerate(tables[head:], rest):
            crc ^= table.take(all_bytes[part, place], mode="wrap")  # a byte is never out of bounds
        wrong = (crc != words[part, 0]) | (words[part, 1] != words[0, 1])
        if wrong.any():
            return begin + int(wrong.argmax())
        begin += len(crc)
    return len(words)


def _join_chunks(group: FrameGroup, keys: KeySet) -> Chunk | None:
    """Return the rows of CHUNK frames as one chunk; None unless their heads are alike, and right.

    A copy each of all steps, times and values, where one by one takes a dozen calls a frame.
    """
    import numpy as np

    words = group.frame_bytes // 8
    halves = np.frombuffer(group.data, "<u4").reshape(-1, 2 * words)
    heads = halves[:, 2:6]
    _, rows, branch, flags = heads[0].tolist()
    width = len(keys.names)
    # In half words, as the arrays of steps, times and places are.
    padded = rows + rows % 2
    steps_at = (frames.FRAME_HEAD_BYTES + CHUNK_HEAD.size) // 4 + 4 * width
    values_at = steps_at + 2 * padded
    places_at = values_at + 2 * width * rows
    end = places_at + (padded if flags & PLACES else 0)
    is_wide = flags & (WIDE_STEPS | WIDE_TIMES)
    if is_wide or not rows or end > 2 * words or (heads != heads[0]).any():
        return None
    bases = np.frombuffer(group.data, "<i8").reshape(-1, words)[:, 3:5]
    if not (fits(int(bases[:, 0].max()), 1) and fits(int(bases[:, 1].max()), TICK_NS)):
        return None

    def whole(at: int, base: Any, factor: int) -> array[int]:
        return _spread_all(halves[:, at : at + rows], base, factor)

    values = np.frombuffer(group.data, "<f8").reshape(-1, words)
    columns = values[:, values_at // 2 : places_at // 2].reshape(-1, width, rows)
    return Chunk(
        keys,
        branch,
        whole(steps_at, bases[:, :1], 1),
        whole(steps_at + padded, bases[:, 1:], TICK_NS),
        tuple(_copy_all(columns[:, i], "d") for i in range(width)),
        whole(places_at, 0, 1) if flags & PLACES else None,
    )


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
FAST = Vectors(_spread, _count_intact, _join_chunks)
