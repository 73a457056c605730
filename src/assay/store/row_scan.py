"""Search for intact rows of metrics, many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

from assay.formats.metrics_file import row_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FEW_ROWS = 128
_MOST_ROWS = 8192
_MOST_BYTES = 128
"""Checksums of longer rows are faster one by one."""


@lru_cache
def row_type(values: int) -> np.dtype[np.void]:
    """Return the numpy type of a row with room for so many values."""
    import numpy as np  # here, as below: who writes must not pay for it

    head = [("crc", "<u4"), ("set", "<u4"), ("place", "<u8"), ("step", "<i8"), ("time", "<i8")]
    return np.dtype([*head, ("values", "<f8", (values,))])


def scan_rows(
    data: bytes, values: int, sets: Sequence[int], *, is_last: bool
) -> Iterator[NDArray[np.void] | tuple[int, int]]:
    """Yield intact rows in arrays, and (begin, end) of what is damaged between them.

    Rows lie behind each other. Where one is damaged or cut off, the next intact row of one of the
    `sets` is found at any byte. What follows the last intact row is not yielded: it may be a row
    that is being written; without `is_last`, all but what may belong to a row of what follows.
    """
    import numpy as np

    kind, at, count = row_type(values), 0, _FEW_ROWS
    while left := (len(data) - at) // kind.itemsize:
        rows = np.frombuffer(data, kind, min(left, count), at)
        intact = _are_intact(rows)
        good = len(rows) if intact.all() else int(intact.argmin())
        if good:
            yield rows[:good]
        at += good * kind.itemsize
        count = min(2 * count, _MOST_ROWS)
        if good < len(rows):
            begin, count = at, _FEW_ROWS
            found = _find_row(data, at, values, sets)
            if found is None and is_last:
                return
            at = len(data) - kind.itemsize + 1 if found is None else found
            yield begin, at


def _find_row(data: bytes, damaged: int, values: int, sets: Sequence[int]) -> int | None:
    """Return where the next intact row behind a damaged one begins."""
    import numpy as np

    size = row_bytes(values)

    def is_row(at: int) -> bool:
        crc = int.from_bytes(data[at : at + 4], "little")
        return at + size <= len(data) and crc == crc32(data[at + 4 : at + size])

    if is_row(damaged + size):  # most often one row is damaged, and no byte is missing
        return damaged + size
    known = np.array(sorted(sets), "<u4")
    step = 1 << 20
    for begin in range(damaged + 1, len(data) - size + 1, step):
        numbers = np.frombuffer(data[begin + 4 : begin + 8 + step], np.uint8)
        words = np.lib.stride_tricks.sliding_window_view(numbers, 4)
        named = np.isin(np.ascontiguousarray(words).view("<u4").ravel(), known)
        for at in np.flatnonzero(named).tolist():
            if at < step and is_row(begin + at):
                return begin + int(at)
    return None


def _are_intact(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which rows have the right checksum."""
    import numpy as np

    size = rows.dtype.itemsize
    if len(rows) < _FEW_ROWS or size > _MOST_BYTES:
        view = memoryview(rows.tobytes())
        starts = range(4, len(view), size)
        crc = np.array([crc32(view[at : at + size - 4]) for at in starts], np.uint32)
    else:
        zero, tables = _crc_tables(size - 4)
        data = np.ascontiguousarray(rows.view(np.uint8).reshape(-1, size).T)
        crc = np.full(len(rows), zero, np.uint32)
        for table, column in zip(tables, data[4:], strict=True):
            crc ^= table.take(column, mode="wrap")  # a byte is never out of bounds
    intact: NDArray[np.bool_] = crc == rows["crc"]
    return intact


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
