"""The grammar of frames: what is written is read, and damage costs no more than it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import RecordError
from assay.formats import frames
from assay.formats.frames import FILE_HEAD_BYTES, Damage, Extent, Frame

FORM = frames.Form(b"X", 1)
HEAD = frames.file_head(FORM)
U32 = st.integers(0, 2**32 - 1)
SMALL = st.tuples(st.integers(0, frames.EXTENT - 1), U32, U32, st.binary(max_size=40))


def extent(at: int, bodies: list[bytes], *, sequence: int = 1, spare: int | None = 0) -> bytes:
    """Extent at file offset `at`, followed by `spare` zero bytes; None: it leaves its end open."""
    body = b"".join(bodies)
    end = 0 if spare is None else at + frames.EXTENT_HEAD_BYTES + len(body) + spare
    return (
        frames.pack_extent(FORM, sequence=sequence, attempt=1, base_ns=10**18, end=end)
        + body
        + b"\0" * (spare or 0)
    )


def padded(payload: bytes) -> bytes:
    return payload + b"\0" * (-len(payload) % 8)


@given(st.lists(SMALL, max_size=8), st.integers(0, 5))
def test_frames_come_back_as_they_were_packed(
    items: list[tuple[int, int, int, bytes]], spare_words: int
) -> None:
    bodies = [frames.pack(*item) for item in items]
    data = HEAD + extent(FILE_HEAD_BYTES, bodies, spare=spare_words * 8)

    first, *found = frames.scan(data)

    assert first == Extent(FILE_HEAD_BYTES, 1, 1, 10**18, len(data))
    assert [(f.tag, f.a, f.b, bytes(f.payload)) for f in found if isinstance(f, Frame)] == [
        (tag, a, b, padded(payload)) for tag, a, b, payload in items
    ]
    assert len(found) == len(items)


def test_a_frame_holds_its_stated_maximum_and_not_a_byte_more() -> None:
    longest = frames.pack(1, 2, 3, b"x" * frames.MAX_PAYLOAD_BYTES)

    *_, frame = frames.scan(HEAD + extent(FILE_HEAD_BYTES, [longest]))

    assert isinstance(frame, Frame)
    assert len(frame.payload) == frames.MAX_PAYLOAD_BYTES
    with pytest.raises(ValueError, match="a frame holds"):
        frames.pack(1, 2, 3, b"x" * (frames.MAX_PAYLOAD_BYTES + 1))


@pytest.mark.parametrize("spare", [0, 64, None])
def test_a_file_cut_anywhere_in_its_last_frame_gives_what_came_before_and_one_torn_end(
    spare: int | None,
) -> None:
    bodies = [frames.pack(tag, 7, 8, b"payload!" * tag) for tag in (1, 2, 3)]
    whole = HEAD + extent(FILE_HEAD_BYTES, bodies, spare=spare)
    last = len(whole) - (spare or 0) - len(bodies[-1])

    for cut in range(last + 1, last + len(bodies[-1])):
        _, *found = frames.scan(whole[:cut])
        assert [f.tag for f in found if isinstance(f, Frame)] == [1, 2]
        assert [f for f in found if isinstance(f, Damage)] == [Damage(last, cut, torn=True)]


@pytest.mark.parametrize("spare", [0, 64, None])
def test_a_file_cut_between_two_frames_is_not_damaged(spare: int | None) -> None:
    bodies = [frames.pack(tag, 7, 8, b"payload!") for tag in (1, 2)]
    whole = HEAD + extent(FILE_HEAD_BYTES, bodies, spare=spare)

    found = list(frames.scan(whole[: FILE_HEAD_BYTES + frames.EXTENT_HEAD_BYTES + len(bodies[0])]))

    assert [type(f) for f in found] == [Extent, Frame]


@pytest.mark.parametrize("spare", [0, 64, None])
@pytest.mark.parametrize("zeros", [8, 16, 24, 48])
def test_a_part_that_never_reached_the_disk_costs_the_frames_it_held_and_no_other(
    spare: int | None, zeros: int
) -> None:
    bodies = [frames.pack(tag, 7, 8, b"payload!" * 4) for tag in (1, 2, 3)]
    first = extent(FILE_HEAD_BYTES, bodies, spare=spare)
    second = extent(FILE_HEAD_BYTES + len(first), [frames.pack(4, 0, 0)], sequence=2)
    hole = FILE_HEAD_BYTES + frames.EXTENT_HEAD_BYTES + len(bodies[0])
    data = bytearray(HEAD + first + second)
    data[hole : hole + zeros] = bytes(zeros)

    found = list(frames.scan(data))

    assert [f.tag for f in found if isinstance(f, Frame)] == [1, 3, 4]
    assert [f for f in found if isinstance(f, Damage)] == [
        Damage(hole, hole + len(bodies[1]), torn=False)
    ]


def three_extents(spare: int | None) -> tuple[bytes, list[tuple[int, int, int]]]:
    """A file, and (tag, begin, end) of each of its nine frames that are no head."""
    whole, places = HEAD, []
    for i in range(3):
        tags = range(3 * i + 1, 3 * i + 4)
        bodies = [frames.pack(tag, i, 0, b"p" * (40 - 3 * tag)) for tag in tags]
        at = len(whole) + frames.EXTENT_HEAD_BYTES
        whole += extent(len(whole), bodies, sequence=i, spare=spare)
        for tag, body in zip(tags, bodies, strict=True):
            places.append((tag, at, at + len(body)))
            at += len(body)
    return whole, places


@pytest.mark.parametrize("spare", [0, 40, None])
def test_each_flipped_bit_of_a_file_costs_at_most_the_frame_that_it_is_in(
    spare: int | None,
) -> None:
    whole, places = three_extents(spare)

    for place in range(FILE_HEAD_BYTES, len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit

            found = list(frames.scan(flipped))

            assert [f.tag for f in found if isinstance(f, Frame)] == [
                tag for tag, begin, end in places if not begin <= place < end
            ]
            assert len([f for f in found if isinstance(f, Extent)]) == 3
            (damage,) = [f for f in found if isinstance(f, Damage)]
            assert damage.offset <= place < damage.end


@given(st.data(), st.sampled_from([0, 40, None]))
def test_garbage_anywhere_costs_the_frames_it_touches_and_is_told(
    data: st.DataObject, spare: int | None
) -> None:
    whole, places = three_extents(spare)
    begin = data.draw(st.integers(FILE_HEAD_BYTES, len(whole) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=200))
    end = min(len(whole), begin + len(garbage))
    broken = whole[:begin] + garbage[: end - begin] + whole[end:]

    found = list(frames.scan(broken))

    assert {f.tag for f in found if isinstance(f, Frame)} >= {
        tag for tag, first, last in places if last <= begin or end <= first
    }
    changed = [place for place in range(begin, end) if broken[place] != whole[place]]
    told = [f for f in found if isinstance(f, Damage)]
    assert all(any(f.offset <= place < f.end for f in told) for place in changed)


def test_a_damaged_length_does_not_lead_past_frames_that_are_intact() -> None:
    bodies = [frames.pack(tag, 0, 0, b"payload!" * 2) for tag in (1, 2, 3, 4)]
    data = bytearray(HEAD + extent(FILE_HEAD_BYTES, bodies))
    claims = FILE_HEAD_BYTES + frames.EXTENT_HEAD_BYTES + 4
    assert data[claims] == 4
    data[claims] = 12  # three frames long: where it says that it ends, a frame begins

    assert [f.tag for f in frames.scan(data) if isinstance(f, Frame)] == [2, 3, 4]


@pytest.mark.parametrize(
    "mark", [b"\xff\xff\x05\x00", b"\x80\x00\x05\x00", frames.pack(frames.EXTENT, 0, 0)[4:8]]
)
def test_a_file_made_to_be_slow_is_read_in_work_in_proportion_to_its_length(mark: bytes) -> None:
    """Work is counted in checksummed bytes: each word of the file claims to begin a long frame."""
    garbage = (b"\1\2\3\4" + mark) * 100_000
    summed = 0
    real = frames.crc32

    def counted(data: memoryview) -> int:
        nonlocal summed
        summed += len(data)
        return real(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "crc32", counted)
        patch.setattr(frames, "_SEARCH_BUDGET", 1 << 20)
        found = list(frames.scan(HEAD + extent(FILE_HEAD_BYTES, [garbage])))

    assert summed < 40 * len(garbage) + (2 << 20)
    assert [type(item) for item in found] == [Extent, Damage]


def test_damage_to_the_first_bytes_of_a_file_is_passed_over_and_told() -> None:
    whole = HEAD + extent(FILE_HEAD_BYTES, [frames.pack(1, 0, 0)])

    for place in range(FILE_HEAD_BYTES):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            assert frames.check_file_head(flipped, FORM, where="there") == Damage(
                0, FILE_HEAD_BYTES, torn=False
            )


def test_a_file_that_has_lost_its_first_sector_is_known_by_the_extents_behind_it() -> None:
    whole, places = three_extents(0)
    broken = bytes(places[2][2]) + whole[places[2][2] :]

    assert frames.check_file_head(broken, FORM, where="there") == Damage(
        0, FILE_HEAD_BYTES, torn=False
    )
    assert [f.tag for f in frames.scan(broken) if isinstance(f, Frame)] == [4, 5, 6, 7, 8, 9]


@given(st.binary(max_size=400))
def test_noise_is_never_raised(noise: bytes) -> None:
    found = list(frames.scan(HEAD + noise))

    assert all(f.end <= len(HEAD + noise) for f in found if isinstance(f, Damage))


def test_an_extent_that_claims_to_end_before_it_begins_does_not_loop() -> None:
    liar = frames.pack_extent(FORM, sequence=1, attempt=1, base_ns=0, end=4) + frames.pack(1, 0, 0)

    assert [type(f) for f in frames.scan(HEAD + liar + b"garbage!" * 4)] == [Extent, Frame, Damage]


@pytest.mark.parametrize(
    "data", [b"", b"\x93ASSA", b"\x93ASSAYM\x01", b"PK\x03\x04....", b"\0" * 8]
)
def test_a_file_of_another_kind_is_refused_by_its_first_bytes(data: bytes) -> None:
    with pytest.raises(RecordError, match="not a file of that kind") as caught:
        frames.check_file_head(data, FORM, where="runs/a/metrics.bin")

    assert caught.value.where == "runs/a/metrics.bin"


def test_a_newer_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(RecordError, match="has format 9; this assay knows 1") as caught:
        frames.check_file_head(frames.file_head(frames.Form(b"X", 9)), FORM, where="there")

    assert "newer" in caught.value.fix
    assert frames.check_file_head(HEAD, FORM, where="there") is None
