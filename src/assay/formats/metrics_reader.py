"""Reader of `metrics.bin`, past any damage; `metrics_file` describes the format."""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.formats import frames
from assay.formats.frames import TICK_NS, CountIntact, Damage, Extent, Frame, FrameGroup
from assay.formats.metrics_file import (
    CHUNK,
    CHUNK_HEAD,
    FORM,
    KEYS,
    KEYS_HEAD,
    MAX_SET_ID,
    MAX_STEP,
    PLACES,
    REWIND_PAYLOAD,
    WIDE,
    WIDE_HEAD,
    WIDE_STEPS,
    WIDE_TIMES,
    Chunk,
    KeySet,
    Rewind,
    Row,
    Rows,
    values_words,
)

_FEW_ROWS = 16
"""So few rows are unpacked faster than views of their columns are made."""
_SHORT_WORDS = 128  # a row this short is cheap to look at where its key set is not known

Spread = Callable[[memoryview, int, int], Sequence[int]]
"""`base + factor * each` of many u32."""
JoinChunks = Callable[[FrameGroup, KeySet], Chunk | None]
"""The rows of CHUNK frames of one length as one chunk; None where they have to be read one by one.
"""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Work on many numbers at once, as this machine has them, by whoever has something for that."""

    spread: Spread
    count_intact: CountIntact | None = None
    join_chunks: JoinChunks | None = None


def read(
    data: bytes | memoryview, *, where: str = "metrics.bin"
) -> Iterator[Row | Rewind | Chunk | Damage]:
    """Yield the contents of a file in its order. Damage is reported and skipped, never raised."""
    for item in read_rows(data, where=where):
        if isinstance(item, Rows):
            for step, time_ns, *values in zip(
                item.steps, item.times_ns, *item.columns, strict=True
            ):
                yield Row(item.keys, step, time_ns, tuple(values), item.attempt)
        else:
            yield item


def read_rows(
    data: bytes | memoryview, *, where: str = "metrics.bin", vectors: Vectors | None = None
) -> Iterator[Rows | Row | Rewind | Chunk | Damage]:
    """Yield what `read` yields, with like rows together. A row of a wide frame still comes alone.

    With `vectors` columns of many rows may be views of `data`, some with strides.
    """
    # The run was killed before the head was written, or logged nothing.
    if len(data) < frames.FILE_HEAD_BYTES:
        yield from damages(data)
        return
    damage = frames.check_file_head(data, FORM, where=where)
    if damage is not None:
        yield damage
    yield from RowReader(vectors).read(data)


class RowReader:
    """Reads rows, each once, from a file that may grow between two reads.

    `offset` is where the next read begins: behind the last intact frame, in `extent`.
    """

    def __init__(self, vectors: Vectors | None = None) -> None:
        self.offset = frames.FILE_HEAD_BYTES
        known = None if sys.byteorder == "big" else vectors
        self._spread = None if known is None else known.spread
        self._count_intact = None if known is None else known.count_intact
        self._join_chunks = None if known is None else known.join_chunks
        self._sets = _KeySets(b"")
        self.extent: Extent | None = None

    def read(self, data: bytes | memoryview) -> Iterator[Rows | Row | Rewind | Chunk | Damage]:
        """Yield the contents of `data`, the whole file, from `offset` on."""
        sets = self._sets
        sets.begin(data)
        attempt = 0 if self.extent is None else self.extent.attempt
        groups = frames.frame_groups(
            data,
            start=self.offset,
            extent=self.extent,
            is_frame=sets.is_frame,
            count_intact=self._count_intact,
        )
        for item in groups:
            match item:
                case Extent():
                    attempt = item.attempt
                    self.extent = item
                    # Behind one of the two copies of the head: the other one may be the damaged
                    # one, in front.
                    self.offset = item.offset + frames.EXTENT_HEAD_BYTES // 2
                    continue
                case Damage():
                    yield item
                    continue
                case FrameGroup() if item.tag <= MAX_SET_ID:
                    yield _rows(item, sets.find(item.tag), attempt, self._spread)
                case FrameGroup() if (chunk := self._join(item)) is not None:
                    yield chunk
                case FrameGroup():
                    before: Row | Rewind | Chunk | Damage | None = None
                    for frame in item:
                        row = _decode(frame, sets, attempt, self._spread)
                        # A rewind is written twice.
                        if row is not None and not (isinstance(row, Rewind) and row == before):
                            yield row
                        before = row
            self.offset = item.offset + len(item.data)

    def _join(self, group: FrameGroup) -> Chunk | None:
        """Return the chunks of a group as one; None for other frames, and for unlike chunks."""
        is_alone = len(group.data) == group.frame_bytes
        if self._join_chunks is None or group.tag != CHUNK or is_alone:
            return None
        keys = self._sets.find(next(iter(group)).a)
        return None if keys is None else self._join_chunks(group, keys)


def frame_groups(data: bytes | memoryview) -> Iterator[FrameGroup | Extent | Damage]:
    """Yield like frames together, undecoded, with extents' heads and what is damaged."""
    sets = _KeySets(data)
    for item in frames.frame_groups(data, is_frame=sets.is_frame):
        if isinstance(item, FrameGroup) and item.tag == KEYS:
            sets.define_all(item)
        yield item


def damages(data: bytes | memoryview, *, where: str = "metrics.bin") -> Iterator[Damage]:
    """Yield what is damaged, without decoding what is not."""
    if len(data) < frames.FILE_HEAD_BYTES:
        if len(data):
            yield Damage(0, len(data), torn=True)
        return
    damage = frames.check_file_head(data, FORM, where=where)
    if damage is not None:
        yield damage
    yield from (item for item in frame_groups(data) if isinstance(item, Damage))


def points_on_curve(data: bytes | memoryview) -> dict[str, int] | None:
    """Count the points of each curve without decoding them; None where that does not tell them."""
    sets = _KeySets(data)
    counts: dict[str, int] = {}
    for item in frames.frame_groups(data, is_frame=sets.is_frame):
        if not isinstance(item, FrameGroup):
            continue
        if item.tag == KEYS:
            sets.define_all(item)
            continue
        rows: Iterable[tuple[int, int]]
        if item.tag <= MAX_SET_ID:
            rows = [(item.tag, len(item.data) // item.frame_bytes)]
        elif item.tag == WIDE:
            rows = ((frame.a, 1) for frame in item)
        elif item.tag == CHUNK:
            rows = ((frame.a, frame.b) for frame in item if _is_on_curve(frame))
        else:
            return None
        for set_id, count in rows:
            keys = sets.find(set_id)
            for name in () if keys is None else keys.names:
                counts[name] = counts.get(name, 0) + count
    return counts


def _is_on_curve(chunk: Frame) -> bool:
    """Return True for a CHUNK frame of branch 0."""
    if len(chunk.payload) < CHUNK_HEAD.size:
        return False
    branch, *_ = CHUNK_HEAD.unpack_from(chunk.payload)
    return not branch


def set_ids(data: bytes | memoryview) -> set[int]:
    """Return the ids of all key sets that a frame names, defined or not."""
    found: set[int] = set()
    for item in frame_groups(data):
        if isinstance(item, FrameGroup):
            if item.tag <= MAX_SET_ID:
                found.add(item.tag)
            elif item.tag in (KEYS, WIDE, CHUNK):
                found.update(frame.a for frame in item)
    return found


class _KeySets:
    """The key sets of a file, by id, as far as it has been read."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self._sets: dict[int, KeySet] = {}
        self._partial: dict[int, list[str]] = {}
        self._later: Mapping[int, KeySet] | None = None

    def begin(self, data: bytes | memoryview) -> None:
        """Go on with a file that has grown."""
        self._data = data
        self._later = None

    def find(self, set_id: int) -> KeySet | None:
        """Return a key set; for a damaged definition, the one repeated further on in the file."""
        if set_id not in self._sets:
            if self._later is None:
                later = _KeySets(self._data)
                for item in frames.frame_groups(self._data, is_frame=self.is_frame):
                    if isinstance(item, FrameGroup) and item.tag == KEYS:
                        later.define_all(item)
                self._later = later._sets
            if set_id in self._later:
                self._sets[set_id] = self._later[set_id]
        return self._sets.get(set_id)

    def is_frame(self, tag: int, words: int) -> bool:
        """Return whether a frame of this tag and length may exist, for the search behind damage."""
        if tag > MAX_SET_ID:
            return True
        known = self._sets.get(tag)
        return words <= _SHORT_WORDS if known is None else words == values_words(len(known.names))

    def define_all(self, group: FrameGroup) -> None:
        """Take in KEYS frames that follow each other; one that makes no sense defines nothing."""
        for frame in group:
            with contextlib.suppress(*_MALFORMED):
                self.define(frame)

    def define(self, frame: Frame) -> None:
        """Take in one KEYS frame."""
        first, axis, count = KEYS_HEAD.unpack_from(frame.payload)
        names = self._partial.setdefault(frame.a, [])
        if first != len(names):  # 0: it is defined again; else the frame before it is damaged
            names.clear()
            if first:
                return
        offset = KEYS_HEAD.size
        for _ in range(count):
            (length,) = struct.unpack_from("<H", frame.payload, offset)
            offset += 2
            name = bytes(frame.payload[offset : offset + length])
            names.append(name.decode("utf-8", "surrogatepass"))
            offset += length
        if len(names) == frame.b:
            known_axis = axis if axis < len(names) else None
            self._sets[frame.a] = KeySet(frame.a, tuple(names), known_axis)
            del self._partial[frame.a]


def _rows(
    group: FrameGroup, keys: KeySet | None, attempt: int, spread: Spread | None
) -> Rows | Damage:
    rest = -1 if keys is None else group.frame_bytes - 8 * values_words(len(keys.names))
    if keys is None or rest < 0 or not fits(group.base_ns, TICK_NS):
        # The checksums were right, so the writer was wrong: these are lost, the others are not.
        return Damage(group.offset, group.offset + len(group.data), torn=False)
    if spread is not None and len(group.data) > _FEW_ROWS * group.frame_bytes:
        return _row_views(group, keys, attempt, spread)
    layout = f"<8xII{len(keys.names)}d{rest}x"
    steps, ticks, *columns = zip(*struct.iter_unpack(layout, group.data), strict=True)
    base_ns = group.base_ns
    times_ns = [base_ns + tick * TICK_NS for tick in ticks]
    return Rows(keys, steps, times_ns, tuple(columns), attempt)


def _row_views(group: FrameGroup, keys: KeySet, attempt: int, spread: Spread) -> Rows:
    """Return rows whose columns are views of the file with a stride of one frame."""
    words = group.frame_bytes // 8
    halves = group.data.cast("I")
    values = group.data.cast("d")
    steps = spread(halves[2 :: 2 * words], 0, 1)
    times_ns = spread(halves[3 :: 2 * words], group.base_ns, TICK_NS)
    columns = tuple(values[2 + i :: words] for i in range(len(keys.names)))
    return Rows(keys, steps, times_ns, columns, attempt)


def _decode(
    frame: Frame, sets: _KeySets, attempt: int, spread: Spread | None
) -> Row | Rewind | Chunk | Damage | None:
    try:
        match frame.tag:
            case 0xFFFE:  # KEYS
                sets.define(frame)
            case 0xFFFD:  # WIDE
                keys = _find_keys(sets, frame.a)
                step, time_ns = WIDE_HEAD.unpack_from(frame.payload)
                values = struct.unpack_from(f"<{len(keys.names)}d", frame.payload, WIDE_HEAD.size)
                return Row(keys, step, time_ns, values, attempt)
            case 0xFFFC:  # REWIND
                (step,) = REWIND_PAYLOAD.unpack_from(frame.payload)
                return Rewind(step, frame.a)
            case 0xFFFB:  # CHUNK
                return _chunk(frame, _find_keys(sets, frame.a), spread)
    except _MALFORMED:
        # The checksum was right, so the writer was wrong: one frame is lost, the others are not.
        return Damage(frame.offset, frame.end, torn=False)
    return None  # a tag of a later minor version: nothing we can show


def _find_keys(sets: _KeySets, set_id: int) -> KeySet:
    keys = sets.find(set_id)
    if keys is None:
        raise _MalformedError
    return keys


def fits(base: int, factor: int) -> bool:
    """Return whether `base` plus any u32 times `factor` is a 64-bit integer."""
    return -(1 << 63) <= base <= (1 << 63) - 1 - factor * MAX_STEP


class _MalformedError(Exception):
    """Frame whose payload contradicts its head."""


_MALFORMED = (struct.error, UnicodeDecodeError, IndexError, _MalformedError)


def _chunk(frame: Frame, keys: KeySet, spread: Spread | None) -> Chunk:
    branch, flags, base_step, base_ns = CHUNK_HEAD.unpack_from(frame.payload)
    rows, width = frame.b, len(keys.names)
    if not rows:
        raise _MalformedError
    offset = CHUNK_HEAD.size + 16 * width
    base = (base_step, 1)
    wide = bool(flags & WIDE_STEPS)
    steps, offset = _integers(frame.payload, offset, rows, base, wide=wide, spread=spread)
    base = (base_ns, TICK_NS)
    wide = bool(flags & WIDE_TIMES)
    times, offset = _integers(frame.payload, offset, rows, base, wide=wide, spread=spread)
    columns: list[Sequence[float]] = []
    for _ in range(width):
        if spread is None:
            columns.append(struct.unpack_from(f"<{rows}d", frame.payload, offset))
        else:
            columns.append(_view(frame.payload, offset, rows, "d"))
        offset += 8 * rows
    places: Sequence[int] | None = None
    if flags & PLACES:
        places, _ = _integers(frame.payload, offset, rows, (0, 1), wide=False, spread=spread)
    return Chunk(keys, branch, steps, times, tuple(columns), places)


def _integers(
    payload: memoryview,
    offset: int,
    rows: int,
    base: tuple[int, int],
    *,
    wide: bool,
    spread: Spread | None,
) -> tuple[Sequence[int], int]:
    """Return the numbers of a column, and the offset behind it.

    `wide` numbers are stored as they are, others as multiples of `base[1]` above `base[0]`.
    """
    size = rows * (8 if wide else 4)
    end = offset + size + (-size % 8)
    if wide:
        return list(struct.unpack_from(f"<{rows}q", payload, offset)), end
    first, factor = base
    offsets = _view(payload, offset, rows, "I") if spread is not None else None
    numbers: Sequence[int] = (
        offsets if offsets is not None else struct.unpack_from(f"<{rows}I", payload, offset)
    )
    if not fits(first, factor) and first + factor * max(numbers) >= 1 << 63:
        raise _MalformedError
    if spread is not None and offsets is not None:
        return spread(offsets, first, factor), end
    return [first + factor * each for each in numbers], end


def _view(payload: memoryview, offset: int, count: int, kind: Literal["d", "I"]) -> memoryview[Any]:
    end = offset + count * (8 if kind == "d" else 4)
    if end > len(payload):
        raise _MalformedError
    return payload[offset:end].cast(kind)
