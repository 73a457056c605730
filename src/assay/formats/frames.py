"""Checksummed frames: the grammar of traces on disk.

Little-endian throughout. A file is frames, and a frame is a whole number of 8-byte words:

    offset  size  field
         0     4  crc32 of everything after this field, to the end of the frame
         4     2  words: length of the whole frame in 8-byte words, head included (2..65535)
         6     2  tag: what kind of frame; each file format gives tags their meaning
         8     4  a
        12     4  b
        16     -  payload, (words - 2) * 8 bytes

A frame whose checksum or length is wrong is damaged, or was torn by a crash: it alone is lost. The
next intact frame is found by trying each word that follows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zlib import crc32

FRAME_HEAD_BYTES = 16
MAX_WORDS = 0xFFFF
MAX_PAYLOAD_BYTES = (MAX_WORDS - 2) * 8

_HEAD = struct.Struct("<IHHII")
_BODY_HEAD = struct.Struct("<HHII")
_MARK = struct.Struct("<IHH")

# A search for the next intact frame looks at every word, and takes the checksum of what may be a
# frame there. The work stays in proportion to the file, though the file be made to be slow; beyond
# it the rest of the file is given up.
_SEARCH_BUDGET = 1 << 28
_SEARCH_BUDGET_PER_BYTE = 32
_WORD_COST = 128  # what looking at a word costs, in bytes of checksum

IsTag = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Frame:
    """Intact frame, from `offset` to `end` of the file."""

    offset: int
    tag: int
    a: int
    b: int
    payload: memoryview

    @property
    def end(self) -> int:
        """File offset behind the frame."""
        return self.offset + FRAME_HEAD_BYTES + len(self.payload)


@dataclass(frozen=True, slots=True)
class Damage:
    """Unreadable bytes from `offset` to `end`. `torn`: the tail that a killed writer left."""

    offset: int
    end: int
    torn: bool


def pack(tag: int, a: int, b: int, payload: bytes = b"") -> bytes:
    """Return one frame, its payload padded with zeros to whole words. ValueError if too long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload of {len(payload)} bytes; a frame holds {MAX_PAYLOAD_BYTES}")
    padded = payload + b"\0" * (-len(payload) % 8)
    body = _BODY_HEAD.pack((FRAME_HEAD_BYTES + len(padded)) // 8, tag, a, b) + padded
    return crc32(body).to_bytes(4, "little") + body


def scan(data: bytes | memoryview, *, is_tag: IsTag = lambda tag: True) -> Iterator[Frame | Damage]:
    """Yield intact frames and damage in file order. A search skips frames that are no `is_tag`."""
    view = memoryview(data)
    budget = _SEARCH_BUDGET + _SEARCH_BUDGET_PER_BYTE * len(view)
    offset = 0
    while offset < len(view):
        frame = _frame_at(view, offset)
        if frame is None:
            end, budget = _find_intact(view, offset + 8, is_tag, budget)
            yield Damage(offset, end, torn=end == len(view))
            offset = end
        else:
            yield frame
            offset = frame.end


def _find_intact(view: memoryview, begin: int, is_tag: IsTag, budget: int) -> tuple[int, int]:
    """Return where the first intact frame begins, or the end of the file, and the budget left.

    The first one counts: a damaged length must not lead past frames that are intact.
    """
    words_left = max(0, len(view) - begin) // 8
    candidates = _MARK.iter_unpack(view[begin : begin + 8 * words_left])
    for index, (crc, words, tag) in enumerate(candidates):
        if budget < 0:
            break
        budget -= _WORD_COST
        if 2 <= words <= words_left - index and is_tag(tag):
            at = begin + 8 * index
            budget -= 8 * words
            if crc32(view[at + 4 : at + 8 * words]) == crc:
                return at, budget
    return len(view), budget


def _frame_at(view: memoryview, offset: int) -> Frame | None:
    """Return the frame at `offset`, None where no intact one is."""
    if len(view) - offset < FRAME_HEAD_BYTES:
        return None
    crc, words, tag, a, b = _HEAD.unpack_from(view, offset)
    end = offset + words * 8
    if words < 2 or end > len(view) or crc32(view[offset + 4 : end]) != crc:
        return None
    return Frame(offset, tag, a, b, view[offset + FRAME_HEAD_BYTES : end])
