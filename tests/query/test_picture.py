"""Pictures drawn as text, and what they are read from."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.core.errors import InputError
from assay.core.terminal import for_terminal
from assay.query.picture import decode_png, picture
from assay.record.media import png, stretch_range


def png_of(
    image: np.ndarray, filters: list[int], kind: int, *, depth: int = 8, interlaced: int = 0
) -> bytes:
    """A PNG whose lines are filtered as asked, the standard's formulas spelled out once more."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    height, width, channels = image.shape
    lines, flat = b"", image.reshape(height, width * channels).astype(int)
    for y in range(height):
        how = filters[y % len(filters)]
        line = bytearray([how])
        for x in range(width * channels):
            left = flat[y, x - channels] if x >= channels else 0
            up = flat[y - 1, x] if y else 0
            corner = flat[y - 1, x - channels] if y and x >= channels else 0
            guess = left + up - corner
            away = [abs(guess - each) for each in (left, up, corner)]
            paeth = (left, up, corner)[away.index(min(away))]
            line.append((flat[y, x] - (0, left, up, (left + up) // 2, paeth)[how]) % 256)
        lines += bytes(line)
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    packed = zlib.compress(lines)
    parts = chunk(b"IDAT", packed[:9]) + chunk(b"IDAT", packed[9:])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + parts + chunk(b"IEND", b"")


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6), st.just(4))),
    st.permutations(range(5)),
)
def test_every_filter_of_png_is_undone(image: np.ndarray, filters: list[int]) -> None:
    assert np.array_equal(decode_png(png_of(image, filters, 6)), image[:, :, :3])
    assert np.array_equal(decode_png(png_of(image[:, :, :3], filters, 2)), image[:, :, :3])
    grey = image[:, :, :1]
    assert np.array_equal(decode_png(png_of(grey, filters, 0)), grey.repeat(3, axis=2))
    assert np.array_equal(decode_png(png_of(image[:, :, :2], filters, 4)), grey.repeat(3, axis=2))


def test_what_is_no_such_file_is_refused() -> None:
    image = np.zeros((2, 2, 1), np.uint8)

    for data in (
        png_of(image, [0], 3),
        png_of(image, [0], 0, depth=16),
        png_of(image, [0], 0, interlaced=1),
    ):
        with pytest.raises(InputError, match="cannot be drawn here"):
            decode_png(data)
    with pytest.raises(InputError, match="no PNG file"):
        decode_png(b"GIF89a")


def test_two_pixels_are_one_character_and_the_room_is_kept() -> None:
    image = np.zeros((4, 3, 3), np.uint8)
    image[:2] = 255
    image[2, 0] = (10, 20, 30)

    assert picture(png(image), width=80, height=24, color=False) == ["███", "   "]
    first, second = (
        for_terminal(line, color=True)
        for line in picture(png(image), width=80, height=24, color=True)
    )
    assert first == "\x1b[38;2;255;255;255;48;2;255;255;255m▀\x1b[0m" * 3
    assert second.startswith("\x1b[38;2;10;20;30;48;2;0;0;0m▀")
    wide = picture(png(np.zeros((90, 400, 3), np.uint8)), width=40, height=10, color=False)
    assert {len(line) for line in wide} == {40} and len(wide) == 5
    tall = picture(png(np.zeros((400, 7, 3), np.uint8)), width=40, height=10, color=False)
    assert len(tall) == 10


def test_a_weight_is_stretched_from_its_lowest_to_its_highest_number() -> None:
    assert stretch_range([[-2.0, 0.0, 2.0]]).tolist() == [[0.0, 0.5, 1.0]]
    assert stretch_range([[np.nan, 3.0, 5.0, np.inf]]).tolist() == [[0.0, 0.0, 1.0, 1.0]]
    assert stretch_range([[7.0, 7.0]]).tolist() == [[0.0, 0.0]]
    assert stretch_range([[np.nan]]).tolist() == [[0.0]]


@pytest.mark.parametrize("place", [16, 20, 24, 25, 40, -20])
def test_a_damaged_or_hostile_picture_is_refused_in_words(place: int) -> None:
    whole = png(np.zeros((4, 4, 3), np.uint8))
    for value in (0, 1, 0x7F, 0xFF):
        data = bytearray(whole)
        data[place] = value
        try:
            picture(bytes(data), width=10, height=10, color=False)
        except InputError as error:
            assert "damaged" in error.what or "cannot be drawn" in error.what
    for end in range(8, len(whole), 5):
        with contextlib.suppress(InputError):
            picture(whole[:end], width=10, height=10, color=False)


@pytest.mark.parametrize("size", [(50_000, 50_000), (4_000_000, 1), (1, 4_000_000)])
def test_a_picture_that_claims_to_be_huge_is_refused_before_it_is_unpacked(
    size: tuple[int, int],
) -> None:
    whole = png(np.zeros((4, 4, 3), np.uint8))
    data = whole[:16] + b"".join(side.to_bytes(4, "big") for side in size) + whole[24:]

    with pytest.raises(InputError, match=f"{size[0]} x {size[1]} pixels cannot be drawn here"):
        decode_png(data)


def test_a_picture_that_unpacks_without_end_takes_no_more_room_than_it_says() -> None:
    bomb = zlib.compress(bytes(100_000_000))
    whole = png(np.zeros((4, 4, 3), np.uint8))
    at = whole.index(b"IDAT") - 4
    size = int.from_bytes(whole[at : at + 4], "big")
    data = whole[:at] + len(bomb).to_bytes(4, "big") + b"IDAT" + bomb + whole[at + 8 + size :]
    tracemalloc.start()
    try:
        picture(data, width=10, height=10, color=False)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
