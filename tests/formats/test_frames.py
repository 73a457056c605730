"""The grammar of frames: what is written is read, and damage costs no more than it must."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.formats import frames
from assay.formats.frames import Damage, Frame

U32 = st.integers(0, 2**32 - 1)
SMALL = st.tuples(st.integers(0, 2**16 - 1), U32, U32, st.binary(max_size=40))


def tags_of(found: list[Frame | Damage]) -> list[int]:
    return [item.tag for item in found if isinstance(item, Frame)]


def damages_of(found: list[Frame | Damage]) -> list[Damage]:
    return [item for item in found if isinstance(item, Damage)]


def nine_frames() -> tuple[bytes, list[tuple[int, int, int]]]:
    """A file, and (tag, begin, end) of each of its frames."""
    whole, places = b"", []
    for tag in range(1, 10):
        body = frames.pack(tag, 7, 8, b"p" * (40 - 3 * tag))
        places.append((tag, len(whole), len(whole) + len(body)))
        whole += body
    return whole, places


@given(st.lists(SMALL, max_size=8))
def test_frames_come_back_as_they_were_packed(items: list[tuple[int, int, int, bytes]]) -> None:
    found = list(frames.scan(b"".join(frames.pack(*item) for item in items)))

    assert [(f.tag, f.a, f.b, bytes(f.payload)) for f in found if isinstance(f, Frame)] == [
        (tag, a, b, payload + b"\0" * (-len(payload) % 8)) for tag, a, b, payload in items
    ]
    assert len(found) == len(items)


def test_a_frame_holds_its_stated_maximum_and_not_a_byte_more() -> None:
    (frame,) = frames.scan(frames.pack(1, 2, 3, b"x" * frames.MAX_PAYLOAD_BYTES))

    assert isinstance(frame, Frame)
    assert len(frame.payload) == frames.MAX_PAYLOAD_BYTES
    with pytest.raises(ValueError, match="a frame holds"):
        frames.pack(1, 2, 3, b"x" * (frames.MAX_PAYLOAD_BYTES + 1))


def test_a_file_cut_anywhere_gives_the_frames_before_and_one_torn_end() -> None:
    whole, places = nine_frames()

    for cut in range(1, len(whole)):
        found = list(frames.scan(whole[:cut]))
        last = max((end for _, _, end in places if end <= cut), default=0)
        assert tags_of(found) == [tag for tag, _, end in places if end <= cut]
        assert damages_of(found) == [Damage(last, cut, torn=True)] * (last < cut)


@pytest.mark.parametrize("zeros", [8, 16, 24, 48])
def test_a_part_that_never_reached_the_disk_costs_the_frames_it_held_and_no_other(
    zeros: int,
) -> None:
    whole, places = nine_frames()
    _, begin, end = places[1]
    data = bytearray(whole)
    data[begin : begin + zeros] = bytes(zeros)

    found = list(frames.scan(data))

    assert tags_of(found) == [1, *range(3, 10)]
    assert damages_of(found) == [Damage(begin, end, torn=False)]


def test_each_flipped_bit_of_a_file_costs_at_most_the_frame_that_it_is_in() -> None:
    whole, places = nine_frames()

    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit

            found = list(frames.scan(flipped))

            assert tags_of(found) == [tag for tag, begin, end in places if not begin <= place < end]
            (damage,) = damages_of(found)
            assert damage.offset <= place < damage.end


@given(st.data())
def test_garbage_anywhere_costs_the_frames_it_touches_and_is_told(data: st.DataObject) -> None:
    whole, places = nine_frames()
    begin = data.draw(st.integers(0, len(whole) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=200))
    end = min(len(whole), begin + len(garbage))
    broken = whole[:begin] + garbage[: end - begin] + whole[end:]

    found = list(frames.scan(broken))

    assert {*tags_of(found)} >= {
        tag for tag, first, last in places if last <= begin or end <= first
    }
    changed = [place for place in range(begin, end) if broken[place] != whole[place]]
    told = damages_of(found)
    assert all(any(f.offset <= place < f.end for f in told) for place in changed)


def test_a_damaged_length_does_not_lead_past_frames_that_are_intact() -> None:
    data = bytearray(b"".join(frames.pack(tag, 0, 0, b"payload!" * 2) for tag in (1, 2, 3, 4)))
    assert data[4] == 4
    data[4] = 12  # three frames long: where it says that it ends, a frame begins

    assert tags_of(list(frames.scan(data))) == [2, 3, 4]


@pytest.mark.parametrize("mark", [b"\xff\xff\x05\x00", b"\x80\x00\x05\x00"])
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
        found = list(frames.scan(garbage))

    assert summed < 40 * len(garbage) + (2 << 20)
    assert found == [Damage(0, len(garbage), torn=True)]


@given(st.binary(max_size=400))
def test_noise_is_never_raised(noise: bytes) -> None:
    found = list(frames.scan(noise))

    assert all(f.end <= len(noise) for f in found if isinstance(f, Damage))
