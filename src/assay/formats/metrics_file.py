"""The byte format of `metrics.bin`, version 1. The grammar of frames is in `formats/frames.py`.

    tag                  a         b         payload
    0 .. 0xFEFF  VALUES  step u32  tick u32  n f64, one for each name of key set `tag`, in its order
    0xFFFE       KEYS    set id    names     u16 first, u16 axis, u32 count, then `count` names:
                                             u16 length, UTF-8
    0xFFFD       WIDE    set id    0         i64 step, i64 unix ns, n f64: for steps that a u32
                                             cannot hold
    0xFFFC       REWIND  attempt   0         i64 step: points before this frame with a greater step
                                             left the curve
    0xFFFB       CHUNK   set id    rows      many rows of one key set, column by column (below)

A tick is 16.384 us since the base of the extent. A key set is defined before its first use, in this
same file and again in each extent that uses it; its id is never given to another set. A long one
takes several KEYS frames, `first` being the index of the frame's first name and `b` the number of
names in the whole set. `axis` is the index of the name that is the x axis of the others; 0xFFFF:
the step is. Frames that others depend on, KEYS and REWIND, are written twice.

CHUNK, written as a long run ends: u32 branch (0: on the curve; else the attempt whose rewind left
it), u32 flags, i64 base step, i64 base unix ns; then for each column f64 min and f64 max (NaN left
out; both NaN where nothing is left); then `rows` steps as u32 offsets from the base step (i64
absolute if flag 1); then `rows` times as u32 ticks from the base time (i64 unix ns if flag 2); then
for each column `rows` f64; with flag 4 then `rows` u32, the place of each row among all rows of the
file in the order in which they were logged: of the rows of several key sets the times do not tell,
since the clock may be set back. Each array is padded to whole words.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.core.errors import RecordError
from assay.core.facts import MAX_NAME_BYTES
from assay.formats import frames
from assay.formats.frames import TICK_NS

FORM = frames.Form(kind=b"M", version=1)

MAX_SET_ID = 0xFEFF
KEYS = 0xFFFE
WIDE = 0xFFFD
REWIND = 0xFFFC
CHUNK = 0xFFFB

_NO_AXIS = 0xFFFF
MAX_NAMES = 0x5000  # so that one row of all names fits into each kind of frame
MAX_STEP = 0xFFFFFFFF

MAX_COLUMNS = 250_000
"""Metrics of a record, where one counts for each set of metrics that it is logged in."""

WIDE_STEPS = 1
WIDE_TIMES = 2
PLACES = 4

_MOST_ROWS = 4096
_LEAST_ROWS = 8
_PARTS = 64

KEYS_HEAD = struct.Struct("<HHI")
WIDE_HEAD = struct.Struct("<qq")
REWIND_PAYLOAD = struct.Struct("<q")
CHUNK_HEAD = struct.Struct("<IIqq")


@dataclass(frozen=True, slots=True)
class KeySet:
    """Metric names that are logged together.

    `axis`: index of the name that is their x axis, or None.
    """

    id: int
    names: tuple[str, ...]
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One log call: values in the order of the key set's names. `time_ns` is unix time."""

    keys: KeySet
    step: int
    time_ns: int
    values: tuple[float, ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one key set that follow each other in the file, by column."""

    keys: KeySet
    steps: Sequence[int]
    times_ns: Sequence[int]
    columns: tuple[Sequence[float], ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """Resume from `step`: earlier points with a greater step leave the curve.

    Points at `step` itself leave it too, for keys that are logged at it again.
    """

    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one key set, by column.

    `branch` 0 is the curve, else the attempt whose rewind left them. `places` are those of the rows
    in the order of logging, None where the times order them.
    """

    keys: KeySet
    branch: int
    steps: Sequence[int]
    times_ns: Sequence[int]
    columns: tuple[Sequence[float], ...]
    places: Sequence[int] | None = None

    @property
    def last_key(self) -> tuple[bool, int, int]:
        """Key that orders the last rows of several chunks of a file, as all rows are ordered."""
        if self.places is None:
            return False, self.times_ns[-1], 0
        return True, 0, self.places[-1]


def pack_keys(keys: KeySet) -> bytes:
    """Return the frames that define a key set; several when the names do not fit into one."""
    encoded = [name.encode("utf-8", "surrogatepass") for name in keys.names]
    if len(encoded) > MAX_NAMES or any(len(name) > MAX_NAME_BYTES for name in encoded):
        raise ValueError(
            f"a key set holds at most {MAX_NAMES} names of at most {MAX_NAME_BYTES} bytes"
        )
    axis = _NO_AXIS if keys.axis is None else keys.axis
    out, first, body = [], 0, b""

    def flush(upto: int) -> None:
        nonlocal first, body
        head = KEYS_HEAD.pack(first, axis, upto - first)
        out.append(frames.pack(KEYS, keys.id, len(encoded), head + body))
        first, body = upto, b""

    for i, name in enumerate(encoded):
        item = len(name).to_bytes(2, "little") + name
        if len(body) + len(item) + KEYS_HEAD.size > frames.MAX_PAYLOAD_BYTES:
            flush(i)
        body += item
    flush(len(encoded))
    return b"".join(out)


def values_struct(count: int) -> struct.Struct:
    """Return the layout of a VALUES frame: words, set id, step, tick and `count` values."""
    return struct.Struct(f"<HHII{count}d")


def values_words(count: int) -> int:
    """Length of a VALUES frame in words."""
    return frames.FRAME_HEAD_BYTES // 8 + count


def pack_wide(set_id: int, step: int, time_ns: int, values: Sequence[float]) -> bytes:
    """Return a row whose step does not fit a VALUES frame (negative, or 2^32 and more)."""
    head = WIDE_HEAD.pack(step, time_ns)
    body = struct.pack(f"<{len(values)}d", *values)
    return frames.pack(WIDE, set_id, 0, head + body)


def pack_rewind(step: int, attempt: int) -> bytes:
    """Return the frames that say that the run resumes from `step`: the same one twice."""
    return 2 * frames.pack(REWIND, attempt, 0, REWIND_PAYLOAD.pack(step))


def rows_per_chunk(columns: int, rows: int) -> int:
    """Return how many of `rows` rows of `columns` values go into one CHUNK frame.

    A frame is what damage costs, so it holds at most a 64th of a curve (but 8 rows), and never more
    than 4,096 rows.
    """
    fixed = CHUNK_HEAD.size + 16 * columns + 40
    fitting = (frames.MAX_PAYLOAD_BYTES - fixed) // (20 + 8 * columns)
    return max(1, min(_MOST_ROWS, fitting, max(_LEAST_ROWS, rows // _PARTS)))


def pack_offsets(numbers: Sequence[int], unit: int) -> tuple[int, bytes]:
    """Return the least number, and all as u32 multiples of `unit` above it, else as i64.

    Ticks lose what lies below 16 us, so they serve only times that came from ticks of the same
    grid.
    """
    base = min(numbers)
    offsets = [number - base for number in numbers]
    if max(offsets) > MAX_STEP * unit or any(offset % unit for offset in offsets):
        return base, array("q", numbers).tobytes()
    return base, array("I", [offset // unit for offset in offsets]).tobytes()


def bounds(column: Sequence[float]) -> tuple[float, float]:
    """Return the extremes of what is no NaN; both are NaN where nothing is left."""
    known = [value for value in column if value == value]
    return (min(known), max(known)) if known else (float("nan"), float("nan"))


def pack_chunk(
    chunk: Chunk,
    *,
    pack_offsets: Callable[[Sequence[int], int], tuple[int, bytes]] = pack_offsets,
    bounds: Callable[[Sequence[float]], tuple[float, float]] = bounds,
) -> bytes:
    """Return one CHUNK frame; the rows must fit (`rows_per_chunk`).

    Who has something faster for its parts may bring that.
    """
    rows = len(chunk.steps)
    base_step, steps = pack_offsets(chunk.steps, 1)
    base_ns, times = pack_offsets(chunk.times_ns, TICK_NS)
    flags = WIDE_STEPS if len(steps) == 8 * rows else 0
    flags |= WIDE_TIMES if len(times) == 8 * rows else 0
    flags |= PLACES if chunk.places is not None else 0
    parts = [
        CHUNK_HEAD.pack(chunk.branch, flags, base_step, base_ns),
        *(struct.pack("<2d", *bounds(column)) for column in chunk.columns),
        _pad(steps),
        _pad(times),
        *(array("d", column).tobytes() for column in chunk.columns),
    ]
    if chunk.places is not None:
        parts.append(_pad(array("I", chunk.places).tobytes()))
    return frames.pack(CHUNK, chunk.keys.id, rows, b"".join(parts))


def _pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


def check_columns(count: int, *, where: str) -> None:
    """Raise RecordError when a record has more metrics than readers hold."""
    if count > MAX_COLUMNS:
        raise RecordError(
            f"There are more than {MAX_COLUMNS} metrics in one record,"
            " each counted in every set it is logged in.",
            where=where,
            fix="Log the same metrics in the same order every time;"
            " a changing part belongs into the value.",
        )
