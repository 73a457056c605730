"""Format of metrics.bin, version 1: a change of the golden bytes needs a new version number."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import RecordError
from assay.core.facts import check_metric_name
from assay.formats import frames, metrics_file, metrics_reader
from assay.formats.frames import TICK_NS, Damage
from assay.formats.metrics_file import Chunk, KeySet, Rewind, Row
from assay.store import series

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
UNIX_NS = st.integers(0, 2**62)
FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [-0.0, math.inf, -math.inf, math.nan]
)
NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5, unique=True)

Fact = tuple[object, ...]


def bits(values: object) -> bytes:
    """Equal exactly when every float is the same number, sign of zero and nan included."""
    numbers = list(values)  # type: ignore[call-overload]
    return struct.pack(f"<{len(numbers)}d", *numbers)


def facts(data: bytes) -> list[Fact]:
    """What a file says, in a form that can be compared."""
    out: list[Fact] = []
    for item in metrics_reader.read(data):
        match item:
            case Row(keys, step, time_ns, values, attempt):
                out.append(("row", keys, step, time_ns, bits(values), attempt))
            case Chunk(keys, branch, steps, times_ns, columns, places):
                order = None if places is None else list(places)
                values = [bits(column) for column in columns]
                out.append(("chunk", keys, branch, list(steps), list(times_ns), values, order))
            case Rewind(step, attempt):
                out.append(("rewind", step, attempt))
            case Damage():
                out.append(("damage", item.offset, item.end, item.torn))
    return out


@dataclass
class File:
    """Writes a file the slow and obvious way, and notes what a reader must find in it."""

    data: bytes = frames.file_head(metrics_file.FORM)
    said: list[Fact] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    """Where the frame of each fact stands in the file: its begin and its end."""
    base_ns: int = 0
    attempt: int = 0
    body: bytes = b""
    attempts_of: list[int] = field(default_factory=list)

    def begin(self, *, base_ns: int = 10**18, attempt: int = 1) -> None:
        self.base_ns, self.attempt, self.body = base_ns, attempt, b""

    def end(self, *, spare: int | None) -> None:
        start = len(self.data)
        self.starts.append(start)
        end = 0 if spare is None else start + frames.EXTENT_HEAD_BYTES + len(self.body) + spare
        head = frames.pack_extent(
            metrics_file.FORM,
            sequence=len(self.starts) - 1,
            attempt=self.attempt,
            base_ns=self.base_ns,
            end=end,
        )
        self.data += head + self.body + b"\0" * (spare or 0)

    def keys(self, keys: KeySet) -> None:
        self.body += 2 * metrics_file.pack_keys(keys)

    def say(self, packed: bytes, *fact: object) -> None:
        begin = len(self.data) + frames.EXTENT_HEAD_BYTES + len(self.body)
        self.body += packed
        self.said.append(fact)
        self.places.append((begin, begin + len(packed)))

    def row(self, keys: KeySet, step: int, tick: int, values: list[float]) -> None:
        count = len(values)
        packed = metrics_file.values_struct(count).pack(
            metrics_file.values_words(count), keys.id, step, tick, *values
        )
        time_ns = self.base_ns + tick * TICK_NS
        self.say(
            crc32(packed).to_bytes(4, "little") + packed,
            "row",
            keys,
            step,
            time_ns,
            bits(values),
            self.attempt,
        )

    def wide(self, keys: KeySet, step: int, time_ns: int, values: list[float]) -> None:
        packed = metrics_file.pack_wide(keys.id, step, time_ns, values)
        self.say(packed, "row", keys, step, time_ns, bits(values), self.attempt)

    def rewind(self, step: int, attempt: int) -> None:
        if self.said[-1:] == [("rewind", step, attempt)]:
            return  # the same again says nothing
        self.say(metrics_file.pack_rewind(step, attempt), "rewind", step, attempt)

    def chunk(self, chunk: Chunk) -> None:
        columns = [bits(column) for column in chunk.columns]
        packed = metrics_file.pack_chunk(chunk)
        self.say(
            packed,
            "chunk",
            chunk.keys,
            chunk.branch,
            list(chunk.steps),
            list(chunk.times_ns),
            columns,
            None if chunk.places is None else list(chunk.places),
        )


@st.composite
def files(draw: st.DrawFn) -> File:
    """Files of several extents, all kinds of frames, with or without a preallocated tail.

    Each extent defines what it uses.
    """
    file = File()
    ids = draw(
        st.lists(st.integers(0, metrics_file.MAX_SET_ID), min_size=3, max_size=3, unique=True)
    )
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        file.begin(base_ns=draw(UNIX_NS), attempt=attempt)
        names = draw(NAMES)
        axis = draw(st.none() | st.integers(0, len(names) - 1))
        keys = KeySet(ids[attempt - 1], tuple(names), axis)
        file.keys(keys)
        values = st.lists(FLOATS, min_size=len(names), max_size=len(names))
        for kind in draw(
            st.lists(st.sampled_from(["row", "row", "wide", "rewind", "chunk"]), max_size=5)
        ):
            match kind:
                case "row":
                    file.row(keys, draw(U32), draw(U32), draw(values))
                case "wide":
                    file.wide(keys, draw(I64), draw(I64), draw(values))
                case "rewind":
                    file.rewind(draw(I64), draw(U32))
                case "chunk":
                    file.chunk(draw(chunks(keys)))
        file.end(spare=draw(st.sampled_from([None, 0, 8, 64])))
    return file


@st.composite
def chunks(draw: st.DrawFn, keys: KeySet) -> Chunk:
    """Steps near each other or far apart, times on a clock's grid or on none."""
    count = draw(st.integers(1, 6))

    def some(each: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(each, min_size=count, max_size=count))

    base = draw(st.integers(-(2**40), 2**40))
    steps = some(draw(st.sampled_from([st.integers(base, base + 2**32 - 1), I64])))
    clock = draw(st.integers(0, 2**61))
    grid = st.integers(0, 2**32 - 1).map(lambda tick: clock + tick * TICK_NS)
    times = some(draw(st.sampled_from([grid, I64])))
    columns = tuple(draw(st.lists(FLOATS, min_size=count, max_size=count)) for _ in keys.names)
    places = some(U32) if draw(st.booleans()) else None
    return Chunk(keys, draw(U32), steps, times, columns, places)


@settings(deadline=None)
@given(files())
def test_everything_written_is_read_bit_for_bit(file: File) -> None:
    assert facts(file.data) == file.said


@pytest.mark.thorough
@settings(deadline=None, max_examples=300)
@given(files(), st.data())
def test_a_flipped_bit_costs_at_most_the_frame_that_it_is_in(
    file: File, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(file.data) - 1))
    flipped = bytearray(file.data)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))

    found = facts(bytes(flipped))

    there = [fact for fact in found if fact[0] != "damage"]
    hit = next((i for i, (begin, end) in enumerate(file.places) if begin <= place < end), None)
    lost = hit is not None and file.said[hit][0] != "rewind"  # which is there twice
    assert there == (
        file.said[:hit] + file.said[hit + 1 :] if lost and hit is not None else file.said
    )
    assert len(found) == len(there) + 1, "and the damage is told"


@pytest.mark.parametrize("columns", [1, 3])
def test_each_flipped_bit_of_a_short_run_costs_one_row_and_is_told(columns: int) -> None:
    file = File()
    keys = KeySet(0, tuple("abc"[:columns]))
    file.begin()
    file.keys(keys)
    for step in range(1, 6):
        file.row(keys, step, step, [step / 7] * columns)
    file.rewind(4, 2)
    file.row(keys, 5, 6, [0.5] * columns)
    file.end(spare=16)

    for place in range(len(file.data)):
        for bit in range(8):
            flipped = bytearray(file.data)
            flipped[place] ^= 1 << bit

            found = facts(bytes(flipped))

            assert len([fact for fact in found if fact[0] == "row"]) >= 5
            assert [fact for fact in found if fact[0] == "rewind"] == [("rewind", 4, 2)]
            assert [fact[0] for fact in found].count("damage") == 1


def test_rows_whose_key_set_is_damaged_are_read_by_its_definition_further_on() -> None:
    keys = KeySet(5, ("loss", "acc"))
    file = File()
    for attempt in (1, 2):
        file.begin(attempt=attempt)
        file.keys(keys)
        file.row(keys, attempt, 1, [0.5, 1.0])
        file.end(spare=8)
    both_copies = slice(file.starts[0] + frames.EXTENT_HEAD_BYTES, file.places[0][0])
    broken = bytearray(file.data)
    broken[both_copies] = b"\xaa" * (both_copies.stop - both_copies.start)

    found = facts(bytes(broken))

    assert [fact for fact in found if fact[0] == "row"] == file.said
    assert [fact[0] for fact in found].count("damage") == 1


@pytest.mark.parametrize(
    "far",
    [
        frames.pack_extent(metrics_file.FORM, sequence=0, attempt=1, base_ns=2**63 - 1, end=0),
        metrics_file.pack_chunk(Chunk(KeySet(3, ("a",)), 0, [2**63 - 1], [0], ([1.0],)))[:-24]
        + bytes(24),
    ],
    ids=["a clock near the end of time", "a checksum that is wrong"],
)
def test_numbers_beyond_64_bits_are_damage_and_not_an_error(far: bytes) -> None:
    keys = KeySet(3, ("a",))
    file = File()
    file.begin()
    file.body += far
    file.keys(keys)
    file.row(keys, 1, 2**32 - 1, [1.0])
    file.end(spare=None)

    assert "damage" in [fact[0] for fact in facts(file.data)]
    assert series.read_contents(file.data).damages


@settings(deadline=None, max_examples=50)
@given(files(), st.data())
def test_a_file_cut_at_any_byte_gives_a_beginning_of_what_it_said(
    file: File, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(frames.FILE_HEAD_BYTES, len(file.data)))

    found = facts(file.data[:cut])

    kept = [fact for fact in found if fact[0] != "damage"]
    assert kept == file.said[: len(kept)]
    assert [fact[3] for fact in found if fact[0] == "damage"] in ([], [True])


@pytest.mark.parametrize("spare", [None, 0, 4096])
def test_a_file_cut_at_every_byte_of_its_last_row_keeps_all_rows_before_it(
    spare: int | None,
) -> None:
    file = File()
    keys = KeySet(3, ("train/loss", "train/acc"))
    file.begin()
    file.keys(keys)
    for step in range(1, 4):
        file.row(keys, step, 1000 * step, [0.5 / step, math.nan])
    file.end(spare=spare)
    assert len(file.data) == file.places[-1][1] + (spare or 0)
    size = len(file.data) - (spare or 0)
    last = size - 8 * metrics_file.values_words(2)

    for cut in range(last + 1, size):
        *rows, (damage, offset, end, is_torn) = facts(file.data[:cut])
        assert (rows, damage, offset, is_torn) == (file.said[:2], "damage", last, True)
        assert cut - 8 < end <= cut


@pytest.mark.slow
def test_a_hundred_thousand_rows_come_back() -> None:
    file = File()
    keys = KeySet(0, ("loss",))
    file.begin()
    file.keys(keys)
    pack = metrics_file.values_struct(1).pack
    rows = [pack(3, 0, step, step, step / 7) for step in range(100_000)]
    file.body += b"".join(crc32(row).to_bytes(4, "little") + row for row in rows)
    file.end(spare=None)

    read = [item for item in metrics_reader.read(file.data) if isinstance(item, Row)]

    assert [row.values[0] for row in read] == [step / 7 for step in range(100_000)]


@pytest.mark.parametrize(
    "names",
    [
        [f"layer{i}/grad_norm" for i in range(5_000)],
        ["a" * 10_000],
        ["ü" * 10_000, *(f"{i}-" + "x" * 9_997 for i in range(70)), "last"],
        ["a\nb", "\0", "\udce4", "🙂", " ", '"', "a/b.c[0]"],
        [],
    ],
    ids=["5,000 names", "10,000 characters", "more than a frame holds", "strange ones", "none"],
)
def test_key_sets_of_any_size_and_spelling_come_back(names: list[str]) -> None:
    keys = KeySet(7, tuple(names), axis=0 if names else None)
    file = File()
    file.begin()
    file.keys(keys)
    file.row(keys, 1, 2, [float(i) for i in range(len(names))])
    file.wide(keys, -1, 2, [float(i) for i in range(len(names))])
    file.end(spare=None)

    assert facts(file.data) == file.said


def test_a_set_of_as_many_names_as_allowed_fits_into_every_kind_of_frame() -> None:
    count = metrics_file.MAX_NAMES
    keys = KeySet(0, tuple(map(str, range(count))))
    file = File()
    file.begin()
    file.keys(keys)
    file.row(keys, 1, 2, [0.0] * count)
    file.wide(keys, 1 << 40, 2, [0.0] * count)
    assert metrics_file.rows_per_chunk(count, 1000) == 1
    file.chunk(Chunk(keys, 0, [-(2**63)], [3], tuple([1.0] for _ in range(count))))
    file.end(spare=0)

    assert facts(file.data) == file.said


@pytest.mark.parametrize("names", [["x"] * (metrics_file.MAX_NAMES + 1), ["x" * 0x10000]])
def test_a_key_set_that_cannot_be_written_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="a key set holds at most"):
        metrics_file.pack_keys(KeySet(0, tuple(names)))


@given(st.integers(0, metrics_file.MAX_NAMES), st.booleans())
@settings(deadline=None, max_examples=30)
def test_as_many_rows_as_promised_fit_into_a_chunk(width: int, wide: bool) -> None:
    rows = metrics_file.rows_per_chunk(width, 10**6)
    column = [0.0] * rows
    last = 2**40 if wide else rows
    steps = [*range(rows - 1), last] if rows > 1 else [last]
    times = [step + 1 for step in steps]

    packed = metrics_file.pack_chunk(
        Chunk(KeySet(0, ("x",) * width), 0, steps, times, (column,) * width)
    )

    assert len(packed) <= frames.MAX_WORDS * 8


def test_the_bounds_of_a_chunk_leave_nan_out_and_are_nan_where_nothing_is_left() -> None:
    columns = ([math.nan, 2.0, -1.0], [math.nan] * 3, [math.inf, 0.0, 1.0])
    packed = metrics_file.pack_chunk(
        Chunk(KeySet(0, ("a", "b", "c")), 0, [1, 2, 3], [0, 0, 0], columns)
    )

    bounds = struct.unpack_from("<6d", packed, 16 + 24)

    assert bounds[:2] == (-1.0, 2.0)
    assert math.isnan(bounds[2]) and math.isnan(bounds[3])
    assert bounds[4:] == (0.0, math.inf)


def test_rows_of_a_key_set_that_is_not_defined_are_damage_and_the_others_stay() -> None:
    known, unknown = KeySet(1, ("a",)), KeySet(2, ("b",))
    file = File()
    file.begin()
    file.keys(known)
    file.row(known, 1, 1, [1.0])
    file.row(unknown, 2, 2, [2.0])
    file.row(known, 3, 3, [3.0])
    file.end(spare=None)

    assert [fact[0] for fact in facts(file.data)] == ["row", "damage", "row"]


def test_a_key_set_may_be_defined_again_and_the_newer_definition_counts() -> None:
    old, new = KeySet(1, ("a", "b")), KeySet(1, ("c",), axis=0)
    file = File()
    file.begin()
    file.keys(old)
    file.row(old, 1, 1, [1.0, 2.0])
    file.end(spare=8)
    file.begin()
    file.keys(new)
    file.row(new, 2, 1, [3.0])
    file.end(spare=None)

    assert facts(file.data) == file.said


def test_a_frame_of_an_unknown_tag_is_passed_over() -> None:
    keys = KeySet(0, ("a",))
    file = File()
    file.begin()
    file.keys(keys)
    file.body += frames.pack(0xFF80, 1, 2, b"from the future")
    file.row(keys, 1, 1, [1.0])
    file.end(spare=None)

    assert facts(file.data) == file.said


def test_a_newer_version_is_refused_with_where_it_lies() -> None:
    newer = frames.file_head(frames.Form(b"M", metrics_file.FORM.version + 1))

    with pytest.raises(RecordError, match="format 2; this assay knows 1") as caught:
        list(metrics_reader.read(newer, where="runs/x/metrics.bin"))

    assert "runs/x/metrics.bin" in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 65_536, "ü" * 32_768])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(RecordError, match="1 to 65535 bytes"):
        check_metric_name(name)


def test_a_name_that_is_no_text_is_refused_and_any_text_is_fine() -> None:
    with pytest.raises(RecordError, match="must be text, not int"):
        check_metric_name(3)  # type: ignore[arg-type]

    for name in ("a", "train/loss", "\n", "x" * 65_535):
        check_metric_name(name)


# ----------------------------------------------------------------------------------------------------------- golden
# Checked by hand against the description at the head of formats/metrics_file.py and formats/frames.py. If
# these bytes have
# to change, the records people have must stay readable: that is a new version, and this one stays
# here.

GOLDEN = """
    93 41 53 53 41 59 4d 01                             # head: kind M, version 1

    ad 4d 99 0b 05 00 ff ff 00 00 00 00 01 00 00 00     # EXTENT 0, attempt 1
    00 00 2a 36 fe 9c 97 17                             # tick 0 is 1,700,000,000 s
    d0 00 00 00 00 00 00 00                             # it ends at offset 208
    4d 01 00 00 00 00 00 00                             # kind M, version 1
    ad 4d 99 0b 05 00 ff ff 00 00 00 00 01 00 00 00     # the same again
    00 00 2a 36 fe 9c 97 17
    d0 00 00 00 00 00 00 00
    4d 01 00 00 00 00 00 00

    78 70 2a 70 04 00 fe ff 00 00 00 00 01 00 00 00     # KEYS: set 0, one name
    00 00 ff ff 01 00 00 00 04 00 6c 6f 73 73 00 00     # from 0, no axis, one here: "loss"
    78 70 2a 70 04 00 fe ff 00 00 00 00 01 00 00 00     # the same again
    00 00 ff ff 01 00 00 00 04 00 6c 6f 73 73 00 00

    ed ae 8a 6c 03 00 00 00 01 00 00 00 3d 00 00 00     # VALUES: set 0, step 1, tick 61
    00 00 00 00 00 00 e0 3f                             # 0.5

    a9 9d 7e f5 03 00 00 00 02 00 00 00 7a 00 00 00     # VALUES: set 0, step 2, tick 122
    00 00 00 00 00 00 f8 7f                             # nan

    00 00 00 00 00 00 00 00                             # the rest of the extent was not written

    87 4f b3 c8 05 00 ff ff 01 00 00 00 02 00 00 00     # EXTENT 1, attempt 2
    00 e8 a0 7e 15 9d 97 17                             # tick 0 is 1,700,000,100 s
    00 00 00 00 00 00 00 00                             # to the end of the file
    4d 01 00 00 00 00 00 00                             # kind M, version 1
    87 4f b3 c8 05 00 ff ff 01 00 00 00 02 00 00 00     # the same again
    00 e8 a0 7e 15 9d 97 17
    00 00 00 00 00 00 00 00
    4d 01 00 00 00 00 00 00

    37 ce 36 88 03 00 fc ff 02 00 00 00 00 00 00 00     # REWIND by attempt 2
    01 00 00 00 00 00 00 00                             # to step 1
    37 ce 36 88 03 00 fc ff 02 00 00 00 00 00 00 00     # the same again
    01 00 00 00 00 00 00 00

    0b 8a 43 ac 05 00 fd ff 00 00 00 00 00 00 00 00     # WIDE: set 0
    ff ff ff ff ff ff ff ff 00 e8 a0 7e 15 9d 97 17     # step -1, at tick 0
    00 00 00 00 00 00 f0 7f                             # inf

    8d ea 48 9c 04 00 fe ff 01 00 00 00 02 00 00 00     # KEYS: set 1, two names
    00 00 01 00 02 00 00 00 03 00 61 63 63 01 00 78     # from 0, axis is name 1, two here: "acc", "x"
    8d ea 48 9c 04 00 fe ff 01 00 00 00 02 00 00 00     # the same again
    00 00 01 00 02 00 00 00 03 00 61 63 63 01 00 78

    a8 9a 7d 63 0f 00 fb ff 01 00 00 00 02 00 00 00     # CHUNK: set 1, two rows
    00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00     # on the curve, no flags, base step 3
    00 e8 a0 7e 15 9d 97 17                             # base time
    00 00 00 00 00 00 00 80 00 00 00 00 00 00 d0 3f     # acc: -0.0 .. 0.25
    00 00 00 00 00 00 24 40 00 00 00 00 00 00 34 40     # x: 10 .. 20
    00 00 00 00 01 00 00 00                             # steps 3, 4
    00 00 00 00 01 00 00 00                             # ticks 0, 1
    00 00 00 00 00 00 d0 3f 00 00 00 00 00 00 00 80     # acc: 0.25, -0.0
    00 00 00 00 00 00 24 40 00 00 00 00 00 00 34 40     # x: 10, 20
"""
GOLDEN_BYTES = bytes.fromhex("".join(line.partition("#")[0] for line in GOLDEN.splitlines()))
BASE_1, BASE_2 = 1_700_000_000 * 10**9, 1_700_000_100 * 10**9


def golden_file() -> File:
    """The same, through the functions of assay."""
    loss, acc = KeySet(0, ("loss",)), KeySet(1, ("acc", "x"), axis=1)
    file = File()
    file.begin(base_ns=BASE_1, attempt=1)
    file.keys(loss)
    file.row(loss, 1, 61, [0.5])
    file.row(loss, 2, 122, [math.nan])
    file.end(spare=8)
    file.begin(base_ns=BASE_2, attempt=2)
    file.rewind(1, 2)
    file.wide(loss, -1, BASE_2, [math.inf])
    file.keys(acc)
    file.chunk(Chunk(acc, 0, [3, 4], [BASE_2, BASE_2 + 16_384], ([0.25, -0.0], [10.0, 20.0])))
    file.end(spare=None)
    return file


def read_without_assay(data: bytes) -> Iterator[tuple[str, int, int, float]]:
    """Yield (name, step, unix ns, value) of every point, from the format's description alone."""
    assert data[:8] == b"\x93ASSAYM\x01"
    at, base_ns, extent_end = 8, 0, 0
    names: dict[int, list[str]] = {}
    while at < len(data):
        crc, words, tag, a, b = struct.unpack_from("<IHHII", data, at)
        if words == 0:
            at = extent_end
            continue
        assert crc == crc32(data[at + 4 : at + 8 * words])
        body = data[at + 16 : at + 8 * words]
        if tag == 0xFFFF:
            base_ns, extent_end = struct.unpack_from("<qq", body)
        elif tag == 0xFFFE:
            names[a], offset = [], 8
            for _ in range(b):
                (length,) = struct.unpack_from("<H", body, offset)
                names[a].append(body[offset + 2 : offset + 2 + length].decode())
                offset += 2 + length
        elif tag == 0xFFFD:
            step, time_ns, *values = struct.unpack(f"<qq{len(names[a])}d", body)
            yield from (
                (name, step, time_ns, value) for name, value in zip(names[a], values, strict=True)
            )
        elif tag == 0xFFFB:
            base_step, base_time = struct.unpack_from("<qq", body, 8)
            padded, start = b + b % 2, 24 + 16 * len(names[a])
            steps = struct.unpack_from(f"<{b}I", body, start)
            ticks = struct.unpack_from(f"<{b}I", body, start + 4 * padded)
            for i, name in enumerate(names[a]):
                column = struct.unpack_from(f"<{b}d", body, start + 8 * padded + 8 * b * i)
                for step, tick, value in zip(steps, ticks, column, strict=True):
                    yield name, base_step + step, base_time + tick * 16_384, value
        elif tag != 0xFFFC:
            values = struct.unpack(f"<{len(names[tag])}d", body)
            yield from (
                (name, a, base_ns + b * 16_384, v)
                for name, v in zip(names[tag], values, strict=True)
            )
        at += 8 * words


def test_the_golden_bytes_are_what_is_written() -> None:
    assert golden_file().data.hex(" ", 8) == GOLDEN_BYTES.hex(" ", 8)


def test_the_golden_bytes_are_read_as_what_they_say() -> None:
    assert facts(GOLDEN_BYTES) == golden_file().said


def test_thirty_lines_without_assay_read_the_golden_bytes() -> None:
    points = [
        (name, step, time_ns, repr(value))
        for name, step, time_ns, value in read_without_assay(GOLDEN_BYTES)
    ]

    assert points == [
        ("loss", 1, BASE_1 + 61 * 16_384, "0.5"),
        ("loss", 2, BASE_1 + 122 * 16_384, "nan"),
        ("loss", -1, BASE_2, "inf"),
        ("acc", 3, BASE_2, "0.25"),
        ("acc", 4, BASE_2 + 16_384, "-0.0"),
        ("x", 3, BASE_2, "10.0"),
        ("x", 4, BASE_2 + 16_384, "20.0"),
    ]
