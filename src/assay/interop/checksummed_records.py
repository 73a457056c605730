"""Files of checksummed records: TFRecord, and the log of LevelDB.

What is damaged is passed over where the next record can be found, and told once with the file and
the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import google_crc32c

_HEAD_BYTES, _TAIL_BYTES = 12, 4
_LENGTH = struct.Struct("<Q")
_CHECK = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_BATCH = 1 << 16

_BLOCK_BYTES = 32768
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass(slots=True)
class Trouble:
    """Damage of a file: its first place, in words, and the number of lost records."""

    path: Path
    offset: int = -1
    what: str = ""
    lost: int = 0

    def add(self, offset: int, what: str) -> None:
        self.lost += 1
        if self.offset < 0:
            self.offset, self.what = offset, what

    def __str__(self) -> str:
        """One sentence, "" when nothing is wrong."""
        more = f", and {self.lost - 1} more places are damaged" if self.lost > 1 else ""
        return f"{self.path}: {self.what} at byte {self.offset}{more}" if self.lost else ""


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data` as a TFRecord has it.

    It is rotated and shifted by a constant, so that a checksum of data that holds checksums is not
    weak.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def tf_records(data: bytes, trouble: Trouble) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a TFRecord file with offsets; a damaged length ends it."""
    at = 0
    while at < len(data):
        starts, lengths, at, ends = _walk(data, at)
        intact = _intact(data, starts, [8] * len(starts), 0)
        whole = next((i for i, is_good in enumerate(intact) if not is_good), len(starts))
        is_good = _intact(data, starts[:whole], lengths[:whole], _HEAD_BYTES)
        for start, length, good in zip(starts, lengths, is_good, strict=False):
            if good:
                yield start, data[start + _HEAD_BYTES : start + _HEAD_BYTES + length]
            else:
                trouble.add(start, "a record is damaged")
        if whole < len(starts):
            trouble.add(
                starts[whole], "the length of a record is damaged; what follows cannot be read"
            )
            return
        if ends:
            trouble.add(at, _end_of(data, at))
            return


def _walk(data: bytes, at: int) -> tuple[list[int], list[int], int, bool]:
    """Return starts and lengths of the next records, the offset behind, and if no more follow."""
    starts: list[int] = []
    lengths: list[int] = []
    size = len(data)
    length_at = _LENGTH.unpack_from
    while at < size and len(starts) < _BATCH:
        length = length_at(data, at)[0] if size - at >= _HEAD_BYTES + _TAIL_BYTES else size
        after = at + _HEAD_BYTES + length + _TAIL_BYTES
        if after > size:
            return starts, lengths, at, True
        starts.append(at)
        lengths.append(length)
        at = after
    return starts, lengths, at, False


def _end_of(data: bytes, at: int) -> str:
    head = data[at : at + _HEAD_BYTES]
    if len(head) == _HEAD_BYTES and _CHECK.unpack_from(head, 8)[0] != masked_crc32c(head[:8]):
        return "the length of a record is damaged; what follows cannot be read"
    return "it ends inside of a record"


def _intact(data: bytes, starts: list[int], lengths: list[int], skip: int) -> list[bool]:
    """Return for each record whether its bytes from `skip` on have the checksum that follows."""
    good = []
    for start, length in zip(starts, lengths, strict=True):
        begin = start + skip
        end = begin + length
        good.append(masked_crc32c(data[begin:end]) == _CHECK.unpack_from(data, end)[0])
    return good


def log_records(data: bytes, start: int, trouble: Trouble) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a LevelDB log with offsets; damage costs the rest of its block."""
    at = start
    begun = start
    parts = list[bytes]()
    while at + _CHUNK.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _CHUNK.size:
            at += left
            continue
        check, length, kind = _CHUNK.unpack_from(data, at)
        body = data[at + _CHUNK.size : at + _CHUNK.size + length]
        if not check and not length and not kind:  # room that was made and never used
            at += left
            continue
        if kind in (_FULL, _FIRST) and parts:
            trouble.add(begun, "a record has no end")
            parts = []
        if length > left - _CHUNK.size or (
            len(body) == length and crc32(data[at + 6 : at + 7] + body) != check
        ):
            trouble.add(at, "a record is damaged")
            at += left
            parts = []
            continue
        if len(body) < length:
            trouble.add(at, "it ends inside of a record")
            return
        begun = at if kind in (_FULL, _FIRST) else begun
        if parts or kind in (_FULL, _FIRST):  # else its beginning was damaged, and that was told
            parts.append(body)
        at += _CHUNK.size + length
        if kind in (_FULL, _LAST) and parts:
            yield begun, b"".join(parts)
            parts = []
    if parts or (at < len(data) and any(data[at:])):
        trouble.add(begun if parts else at, "it ends inside of a record")
