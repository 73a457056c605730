"""Checksummed frames: the grammar of traces on disk.

Little-endian throughout. A file is eight bytes of head (`93 41 53 53 41 59`, a kind byte, a version
byte) and then frames. A frame is a whole number of 8-byte words:

    offset  size  field
         0     4  crc32 of everything after this field, to the end of the frame
         4     2  words: length of the whole frame in 8-byte words, head included (2..65535)
         6     2  tag: what kind of frame; each file format gives tags their meaning
         8     4  a
        12     4  b
        16     -  payload, (words - 2) * 8 bytes

Frames lie in extents. An extent begins with an EXTENT frame, written twice: a = sequence, b =
attempt, payload i64 unix ns of tick 0, i64 file offset at which the extent ends, kind byte, version
byte, six zeros. No frame crosses an extent's end. A word of zero where a frame should begin means
that the rest of the extent was not written yet. An end of 0 means that the extent was written
without preallocation and reaches to the next EXTENT frame or the end of the file.

A frame whose checksum or length is wrong is damaged, or was torn by a crash: it alone is lost. The
next intact frame is found by trying each word that follows.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
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
_MARK = struct.Struct("<IHH")
_EXTENT_PAYLOAD = struct.Struct("<qqBB6x")
_EXTENT_BYTES = FRAME_HEAD_BYTES + _EXTENT_PAYLOAD.size
EXTENT_HEAD_BYTES = 2 * _EXTENT_BYTES

_EXTENT_MARK = re.compile(re.escape(struct.pack("<HH", _EXTENT_BYTES // 8, EXTENT)))
_WRITTEN = re.compile(rb"[^\0]")

# A search for the next intact frame looks at every word, and takes the checksum of what may be a
# frame there. The
# work stays in proportion to the file, though the file be made to be slow; beyond it whole extents
# are passed over.
_SEARCH_BUDGET = 1 << 28
_SEARCH_BUDGET_PER_BYTE = 32
_WORD_COST = 128  # what looking at a word costs, in bytes of checksum

IsFrame = Callable[[int, int], bool]
"""`is_frame(tag, words)`: True if a frame of that tag and length may exist in the file."""


@dataclass(frozen=True, slots=True)
class Form:
    """Kind and version of a file, stored in its first bytes and in the head of each extent."""

    kind: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Frame:
    """Intact frame.

    `offset`: its begin in the file; `base_ns`: unix time of its extent's tick 0.
    """

    offset: int
    tag: int
    a: int
    b: int
    payload: memoryview
    base_ns: int

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


@dataclass(frozen=True, slots=True)
class Extent:
    """Head of an extent: writer, begin, and end as a file offset (0: not preallocated)."""

    offset: int
    sequence: int
    attempt: int
    base_ns: int
    end: int


def file_head(form: Form) -> bytes:
    """Return the first eight bytes of a file of frames."""
    return MAGIC + form.kind + bytes([form.version])


def check_file_head(data: bytes | memoryview, form: Form, *, where: str) -> Damage | None:
    """Raise RecordError unless `data` begins like a file of this form; return damage to its head.

    Damaged first bytes are skipped where the head of the first extent, which has a checksum,
    agrees.
    """
    head = bytes(data[:FILE_HEAD_BYTES])
    if head == file_head(form):
        return None
    if _form_of_first_extent(memoryview(data)) == form:
        return Damage(0, FILE_HEAD_BYTES, torn=False)
    if len(head) < FILE_HEAD_BYTES or head[:7] != MAGIC + form.kind:
        raise RecordError(
            "This is not a file of that kind: its first bytes are others.", where=where
        )
    fix = "Read it with the assay that wrote it, or a newer one."
    raise RecordError(
        f"The file has format {head[7]}; this assay knows {form.version}.", where=where, fix=fix
    )


def pack(tag: int, a: int, b: int, payload: bytes = b"") -> bytes:
    """Return one frame, its payload padded with zeros to whole words. ValueError if too long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload of {len(payload)} bytes; a frame holds {MAX_PAYLOAD_BYTES}")
    padded = payload + b"\0" * (-len(payload) % 8)
    body = _BODY_HEAD.pack((FRAME_HEAD_BYTES + len(padded)) // 8, tag, a, b) + padded
    return crc32(body).to_bytes(4, "little") + body


def pack_extent(form: Form, *, sequence: int, attempt: int, base_ns: int, end: int) -> bytes:
    """Return the head of an extent: its frame twice, so that damage to one keeps the clock."""
    payload = _EXTENT_PAYLOAD.pack(base_ns, end, form.kind[0], form.version)
    return 2 * pack(EXTENT, sequence, attempt, payload)


def scan(
    data: bytes | memoryview,
    *,
    start: int = FILE_HEAD_BYTES,
    is_frame: IsFrame = lambda tag, words: True,
) -> Iterator[Frame | Extent | Damage]:
    """Yield intact frames, extent heads and damage in file order from file offset `start` on.

    `start` must be the offset of an extent's head (the first is right behind the file's head).
    """
    view = memoryview(data)
    size = len(view)
    search = _FrameSearch(view, is_frame)
    offset = start
    extent = Extent(start, 0, 0, 0, 0)
    while offset < size:
        limit = min(extent.end, size) if offset < extent.end else size
        frame = _frame_at(view, offset, limit, extent.base_ns)
        if frame is None:
            end, following = search.after(offset, limit)
            if end > offset:
                yield Damage(offset, end, torn=following >= size)
            offset = following
        elif frame.tag != EXTENT:
            yield frame
            offset = frame.end
        else:
            head = _extent_of(frame)
            if isinstance(head, Damage):
                yield head
            elif not _is_copy(head, extent):
                extent = head
                yield extent
            offset = frame.end


def _extent_of(frame: Frame) -> Extent | Damage:
    """Return the head of an extent; Damage where the writer was wrong: the checksum is right."""
    if len(frame.payload) != _EXTENT_PAYLOAD.size:
        return Damage(frame.offset, frame.end, torn=False)
    base_ns, end, *_ = _EXTENT_PAYLOAD.unpack(frame.payload)
    return Extent(frame.offset, frame.a, frame.b, base_ns, max(0, end))


class _FrameSearch:
    """Search for the next intact frame behind a damaged one, within a work budget for the file."""

    def __init__(self, view: memoryview, is_frame: IsFrame) -> None:
        self._view = view
        self._is_frame = is_frame
        self._budget = _SEARCH_BUDGET + _SEARCH_BUDGET_PER_BYTE * len(view)
        self._next_extent = (0, 0)  # of the two the second is the first extent behind the first
        # The limit last asked for, and where the zeros before it begin.
        self._written = (-1, 0)

    def after(self, offset: int, limit: int) -> tuple[int, int]:
        """Return the end of the damage at `offset`, and the offset to read on from.

        Reading resumes at an intact frame or at the end of the extent. Where the rest of the extent
        was never written nothing is damaged: the damage ends where it begins.
        """
        if limit >= len(self._view):
            limit = self._extent_behind(offset)
        end = self._end_of_written(offset, limit)
        if end <= offset:
            return offset, limit
        first = _WRITTEN.search(self._view, offset, end)
        skipped = (first.start() - offset) // 8 * 8 if first is not None else 0
        found = self._intact(offset + max(8, skipped), end, limit)
        return (
            (found, found) if found is not None else (min(limit, end + -(end - offset) % 8), limit)
        )

    def _intact(self, begun: int, end: int, limit: int) -> int | None:
        """Return the offset of the first intact frame that begins before `end`, or None.

        The first one counts: a damaged length must not lead past frames that are intact.
        """
        view, is_frame = self._view, self._is_frame
        words_left = max(0, limit - begun) // 8
        candidates = _MARK.iter_unpack(view[begun : begun + 8 * words_left])
        for index, (crc, words, tag) in enumerate(candidates):
            at = begun + 8 * index
            if at >= end or self._budget < 0:
                break
            self._budget -= _WORD_COST
            if (
                words < 2
                or words > words_left - index
                or not (tag == EXTENT or is_frame(tag, words))
            ):
                continue
            self._budget -= 8 * words
            if crc32(view[at + 4 : at + 8 * words]) == crc:
                return at
        return None

    def _extent_behind(self, offset: int) -> int:
        known_from, known = self._next_extent
        if not known_from <= offset < known:
            self._next_extent = (offset, _next_extent(self._view, offset))
        return self._next_extent[1]

    def _end_of_written(self, offset: int, limit: int) -> int:
        if self._written[0] != limit:
            written = len(bytes(self._view[offset:limit]).rstrip(b"\0"))
            self._written = (limit, offset + written)
        return self._written[1]


def _next_extent(view: memoryview, offset: int) -> int:
    """Return where the next intact EXTENT frame begins after `offset`, or the end of the file."""
    for found in _EXTENT_MARK.finditer(view, offset + 8):
        at = found.start() - 4
        if at % 8 == 0 and _frame_at(view, at, len(view), 0) is not None:
            return at
    return len(view)


def _is_copy(head: Extent, extent: Extent) -> bool:
    """Return whether `head` is the second copy of the extent's head."""
    return (
        head.offset == extent.offset + _EXTENT_BYTES
        and (head.sequence, head.attempt) == (extent.sequence, extent.attempt)
        and (head.base_ns, head.end) == (extent.base_ns, extent.end)
    )


def _form_of_first_extent(view: memoryview) -> Form | None:
    """Return the form that the first intact extent head states, or None without one."""
    frame = _frame_at(view, _next_extent(view, 0), len(view), 0)
    if frame is None or len(frame.payload) != _EXTENT_PAYLOAD.size:
        return None
    _, _, kind, version = _EXTENT_PAYLOAD.unpack(frame.payload)
    return Form(bytes([kind]), version)


def _frame_at(view: memoryview, offset: int, limit: int, base_ns: int) -> Frame | None:
    """Return the frame at `offset`, None where no intact one is."""
    if limit - offset < FRAME_HEAD_BYTES:
        return None
    crc, words, tag, a, b = _HEAD.unpack_from(view, offset)
    end = offset + words * 8
    if words < 2 or end > limit or crc32(view[offset + 4 : end]) != crc:
        return None
    return Frame(offset, tag, a, b, view[offset + FRAME_HEAD_BYTES : end], base_ns)
