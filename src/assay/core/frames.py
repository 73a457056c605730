"""Checksummed frames: the grammar that metrics and traces share on disk.

Little-endian throughout. A file is eight bytes of head (`93 41 53 53 41 59`, a kind byte, a version byte) and then
frames. A frame is a whole number of 8-byte words:

    offset  size  field
         0     4  crc32 of everything after this field, to the end of the frame
         4     2  words: length of the whole frame in 8-byte words, head included (2..65535)
         6     2  tag: what kind of frame; each file format gives tags their meaning
         8     4  a
        12     4  b
        16     -  payload, (words - 2) * 8 bytes

Frames lie in extents. An extent begins with an EXTENT frame that carries the wall clock of its tick 0 and the file
offset at which it ends; no frame crosses an extent's end. A word of zero where a frame should begin means that the
rest of the extent was not written yet. `end` 0 means that the extent was written without preallocation and reaches
to the next EXTENT frame or the end of the file.

A frame whose checksum or length is wrong ends its extent: it was torn by a crash (or damaged later).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from assay.core.errors import RecordError

MAGIC = b"\x93ASSAY"
FILE_HEAD_BYTES = 8
FRAME_HEAD_BYTES = 16
MAX_WORDS = 0xFFFF
MAX_PAYLOAD_BYTES = (MAX_WORDS - 2) * 8
TICK_NS = 1 << 14  # 16.384 us: a u32 of ticks lasts 19.5 hours

EXTENT = 0xFFFF

_HEAD = struct.Struct("<IHHII")
_BODY_HEAD = struct.Struct("<HHII")
_EXTENT_PAYLOAD = struct.Struct("<qq")
EXTENT_FRAME_BYTES = FRAME_HEAD_BYTES + _EXTENT_PAYLOAD.size


@dataclass(frozen=True, slots=True)
class Frame:
    """One intact frame. `offset` is where it begins in the file; `base_ns` the unix time of tick 0 of its extent."""

    offset: int
    tag: int
    a: int
    b: int
    payload: memoryview
    base_ns: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Intact frames of one tag and one length, each right behind the other. `data` is all of them, heads included."""

    offset: int
    tag: int
    frame_bytes: int
    data: memoryview
    base_ns: int

    def __iter__(self) -> Iterator[Frame]:
        for at in range(0, len(self.data), self.frame_bytes):
            _, _, _, a, b = _HEAD.unpack_from(self.data, at)
            payload = self.data[at + FRAME_HEAD_BYTES : at + self.frame_bytes]
            yield Frame(self.offset + at, self.tag, a, b, payload, self.base_ns)


@dataclass(frozen=True, slots=True)
class Damage:
    """From `offset` to `end` nothing can be read: `torn` at the end of what a killed writer left, else damaged."""

    offset: int
    end: int
    torn: bool


@dataclass(frozen=True, slots=True)
class Extent:
    """The head of an extent: who began it, when, and where it ends (file offset; 0 = not preallocated)."""

    offset: int
    sequence: int
    attempt: int
    base_ns: int
    end: int


def file_head(kind: bytes, version: int) -> bytes:
    """The first eight bytes of a file of frames."""
    return MAGIC + kind + bytes([version])


def check_file_head(data: bytes | memoryview, kind: bytes, version: int, *, where: str) -> None:
    """Raise RecordError unless `data` begins like a file of this kind in a version we can read."""
    head = bytes(data[:FILE_HEAD_BYTES])
    if len(head) < FILE_HEAD_BYTES or head[:7] != MAGIC + kind:
        raise RecordError("This is not a file of that kind: its first bytes are others.", where=where)
    if head[7] > version:
        fix = "Read it with the assay that wrote it, or a newer one."
        raise RecordError(f"The file has format {head[7]}; this assay knows {version}.", where=where, fix=fix)


def pack(tag: int, a: int, b: int, payload: bytes = b"") -> bytes:
    """One frame. The payload is padded with zeros to whole words; ValueError when it is too long for one frame."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload of {len(payload)} bytes; a frame holds {MAX_PAYLOAD_BYTES}")
    padded = payload + b"\0" * (-len(payload) % 8)
    body = _BODY_HEAD.pack((FRAME_HEAD_BYTES + len(padded)) // 8, tag, a, b) + padded
    return crc32(body).to_bytes(4, "little") + body


def pack_extent(*, sequence: int, attempt: int, base_ns: int, end: int) -> bytes:
    """The frame that begins an extent."""
    return pack(EXTENT, sequence, attempt, _EXTENT_PAYLOAD.pack(base_ns, end))


def scan(data: bytes | memoryview, *, start: int = FILE_HEAD_BYTES) -> Iterator[Frame | Extent | Damage]:
    """Every intact frame from file offset `start` on, in file order, with extents' heads and what is damaged.

    `start` must be the offset of an EXTENT frame (the first is right behind the file's head).
    """
    for item in stretches(data, start=start):
        if isinstance(item, Stretch):
            yield from item
        else:
            yield item


def stretches(
    data: bytes | memoryview, *, start: int = FILE_HEAD_BYTES, base: int = 0, extent: Extent | None = None
) -> Iterator[Stretch | Extent | Damage]:
    """The same as `scan`, with like frames together: a file is mostly that, and is so read several times as fast.

    To read on in a file that grows, `data` is the file from offset `base` on, `start` the file offset of the first
    frame to read, and `extent` the extent that it lies in.
    """
    view = memoryview(data)
    size = base + len(view)
    offset = start
    extent = extent or Extent(start, 0, 0, 0, 0)
    while offset < size:
        limit = min(extent.end, size) if extent.end else size
        frame = _frame_at(view, offset, limit if offset < limit else size, extent.base_ns, base)
        if isinstance(frame, Frame):
            size_bytes = FRAME_HEAD_BYTES + len(frame.payload)
            if frame.tag == EXTENT:
                offset += size_bytes
                base_ns, end = _EXTENT_PAYLOAD.unpack_from(frame.payload)
                extent = Extent(frame.offset, frame.a, frame.b, base_ns, end)
                yield extent
            else:
                data_end = _end_of_stretch(view, offset - base, size_bytes, limit - base)
                yield Stretch(offset, frame.tag, size_bytes, view[offset - base : data_end], extent.base_ns)
                offset = base + data_end
        else:
            # Where the extent ends is not known when it was not preallocated, or when this should have been its head.
            known = offset < extent.end
            next_offset = extent.end if known else base + _next_extent(view, offset - base)
            if frame == "bad":
                yield Damage(offset, min(next_offset, size), torn=next_offset >= size)
            offset = next_offset


def _next_extent(view: memoryview, offset: int) -> int:
    """Where the next intact EXTENT frame begins after `offset`, or the end of the file."""
    mark = (EXTENT_FRAME_BYTES // 8).to_bytes(2, "little") + EXTENT.to_bytes(2, "little")
    rest = bytes(view[offset:])
    at = rest.find(mark, 8)
    while at >= 0:
        found = offset + at - 4
        if found % 8 == 0 and isinstance(_frame_at(view, found, len(view), 0), Frame):
            return found
        at = rest.find(mark, at + 1)
    return len(view)


def _end_of_stretch(view: memoryview, offset: int, size_bytes: int, limit: int) -> int:
    """Where the frames end that are intact and have the tag and the length of the one at `offset`."""
    mark = bytes(view[offset + 4 : offset + 8])
    offset += size_bytes
    most = max(0, limit - offset) // size_bytes
    for crc, body in struct.iter_unpack(f"<I{size_bytes - 4}s", view[offset : offset + most * size_bytes]):
        if not body.startswith(mark) or crc32(body) != crc:
            break
        offset += size_bytes
    return offset


def _frame_at(view: memoryview, offset: int, limit: int, base_ns: int, base: int = 0) -> Frame | str:
    """The frame at file offset `offset` of a view of the file from `base` on, or "end" when there is none, or "bad"."""
    at, limit = offset - base, limit - base
    if limit - at < FRAME_HEAD_BYTES:
        return "bad" if any(view[at:limit]) else "end"
    crc, words, tag, a, b = _HEAD.unpack_from(view, at)
    end = at + words * 8
    if words == 0 and crc == 0:
        return "bad" if any(view[at : at + FRAME_HEAD_BYTES]) else "end"
    if words < 2 or end > limit or crc32(view[at + 4 : end]) != crc:
        return "bad"
    return Frame(offset, tag, a, b, view[at + FRAME_HEAD_BYTES : end], base_ns)
