"""The grammar of frames: what is written is read, and damage costs no more than it must."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core import frames
from assay.core.errors import RecordError
from assay.core.frames import FILE_HEAD_BYTES, Damage, Extent, Frame

HEAD = frames.file_head(b"X", 1)
U32 = st.integers(0, 2**32 - 1)
SMALL = st.tuples(st.integers(0, frames.EXTENT - 1), U32, U32, st.binary(max_size=40))


def extent(at: int, bodies: list[bytes], *, sequence: int = 1, spare: int | None = 0) -> bytes:
    """An extent that begins at file offset `at`; `spare` zero bytes behind it, None: it does not say where it ends."""
    body = b"".join(bodies)
    end = 0 if spare is None else at + frames.EXTENT_FRAME_BYTES + len(body) + spare
    return frames.pack_extent(sequence=sequence, attempt=1, base_ns=10**18, end=end) + body + b"\0" * (spare or 0)


def padded(payload: bytes) -> bytes:
    return payload + b"\0" * (-len(payload) % 8)


@given(st.lists(SMALL, max_size=8), st.integers(0, 5))
def test_frames_come_back_as_they_were_packed(items: list[tuple[int, int, int, bytes]], spare_words: int) -> None:
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
def test_a_file_cut_anywhere_in_its_last_frame_gives_what_came_before_and_one_torn_end(spare: int | None) -> None:
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

    found = list(frames.scan(whole[: FILE_HEAD_BYTES + frames.EXTENT_FRAME_BYTES + len(bodies[0])]))

    assert [type(f) for f in found] == [Extent, Frame]


@pytest.mark.parametrize("spare", [0, 64, None])
def test_a_page_that_never_reached_the_disk_ends_its_extent_only(spare: int | None) -> None:
    bodies = [frames.pack(tag, 7, 8, b"payload!" * 4) for tag in (1, 2)]
    first = extent(FILE_HEAD_BYTES, bodies, spare=spare)
    second = extent(FILE_HEAD_BYTES + len(first), [frames.pack(3, 0, 0)], sequence=2)
    hole = FILE_HEAD_BYTES + frames.EXTENT_FRAME_BYTES + 24
    data = bytearray(HEAD + first + second)
    data[hole : hole + 8] = b"\0" * 8

    found = list(frames.scan(data))

    assert [f.tag for f in found if isinstance(f, Frame)] == [3]
    assert [f.torn for f in found if isinstance(f, Damage)] == [False]


@settings(deadline=None)
@given(st.data(), st.sampled_from([0, 40, None]))
def test_a_flipped_bit_costs_at_most_the_rest_of_its_extent(data: st.DataObject, spare: int | None) -> None:
    whole, ends, tags = HEAD, [], []
    for i in range(3):
        ends.append(len(whole))
        bodies = [frames.pack(tag, i, 0, b"p" * tag) for tag in range(3 * i, 3 * i + 3)]
        whole += extent(len(whole), bodies, sequence=i, spare=spare)
        tags.append(list(range(3 * i, 3 * i + 3)))
    place = data.draw(st.integers(FILE_HEAD_BYTES, len(whole) - 1))
    hit = max(i for i, start in enumerate(ends) if start <= place)
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))

    found = list(frames.scan(flipped))

    survived = [f.tag for f in found if isinstance(f, Frame)]
    others = [tag for i, some in enumerate(tags) for tag in some if i != hit]
    assert [tag for tag in survived if tag in others] == others
    assert survived == sorted(survived)
    assert all(f.offset <= place < f.end for f in found if isinstance(f, Damage))


@given(st.binary(max_size=400))
def test_noise_is_never_raised(noise: bytes) -> None:
    found = list(frames.scan(HEAD + noise))

    assert all(f.end <= len(HEAD + noise) for f in found if isinstance(f, Damage))


def test_an_extent_that_claims_to_end_before_it_begins_does_not_loop() -> None:
    liar = frames.pack_extent(sequence=1, attempt=1, base_ns=0, end=4) + frames.pack(1, 0, 0)

    assert [type(f) for f in frames.scan(HEAD + liar + b"garbage!" * 4)] == [Extent, Frame, Damage]


@pytest.mark.parametrize("data", [b"", b"\x93ASSA", b"\x93ASSAYM\x01", b"PK\x03\x04....", b"\0" * 8])
def test_a_file_of_another_kind_is_refused_by_its_first_bytes(data: bytes) -> None:
    with pytest.raises(RecordError, match="not a file of that kind") as caught:
        frames.check_file_head(data, b"X", 1, where="runs/a/metrics.bin")

    assert caught.value.where == "runs/a/metrics.bin"


def test_a_newer_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(RecordError, match="has format 9; this assay knows 1") as caught:
        frames.check_file_head(frames.file_head(b"X", 9), b"X", 1, where="there")

    assert "newer" in caught.value.fix
    frames.check_file_head(HEAD, b"X", 1, where="there")
