"""What a file is, by its first bytes."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from assay.query.media_kind import HEAD_BYTES, Media, media_of


@pytest.mark.parametrize("form", ["PNG", "GIF", "JPEG", "WEBP"])
def test_the_size_of_a_picture_is_read_from_its_head(form: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(file, form)

    assert media_of(file.getvalue()) == Media(f"image/{form.lower()}", 30, 20)


def test_a_lossless_and_an_animated_webp_have_their_sizes_elsewhere() -> None:
    lossless, animated = io.BytesIO(), io.BytesIO()
    frames = [Image.new("RGB", (30, 20), color) for color in ("red", "blue")]
    frames[0].save(lossless, "WEBP", lossless=True)
    frames[0].save(animated, "WEBP", save_all=True, append_images=frames[1:])

    assert [media_of(file.getvalue()).width for file in (lossless, animated)] == [30, 30]
    assert [media_of(file.getvalue()).height for file in (lossless, animated)] == [20, 20]


def test_a_picture_that_hides_its_size_or_claims_a_huge_one_is_not_drawn_by_itself() -> None:
    file = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(file, "JPEG")
    comment = b"\xff\xfe\xff\xff" + bytes(65_533)
    hidden = file.getvalue()[:2] + comment * 2 + file.getvalue()[2:]
    head = file.getvalue().replace(struct.pack(">HH", 20, 30), struct.pack(">HH", 65_500, 65_500))
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 50_000, 50_000)
    webp = b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\xff\xff\x7f" * 2

    assert not media_of(file.getvalue()).is_too_large
    assert not media_of(b"RIFF\0\0\0\0WAVEfmt ").is_too_large
    for data in (hidden, head, png, webp, b"GIF89a\xff\xff\xff\xff", b"GIF89a\0\0\0\0"):
        assert media_of(data[:HEAD_BYTES]).is_too_large


@pytest.mark.parametrize(
    ("head", "content_type"),
    [
        (b"RIFF\0\0\0\0WAVEfmt ", "audio/wav"),
        (b"ID3\3", "audio/mpeg"),
        (b"OggS\0", "audio/ogg"),
        (b"fLaC\0", "audio/flac"),
        (b"\0\0\0\x18ftypmp42", "video/mp4"),
        (b"\x1a\x45\xdf\xa3", "video/webm"),
        (b"RIFF\0\0\0\0WEBP", "image/webp"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (
            b"<svg onload=alert(1)>",
            "text/plain; charset=utf-8",
        ),  # shown as what it says, never as a picture or page
        ("grün".encode()[:3], "text/plain; charset=utf-8"),  # cut inside of a character
        (b"\x80\x04\x95\0", "application/octet-stream"),
        (b"\xfe\xfe\xfe\xfe\xfe", "application/octet-stream"),
    ],
)
def test_a_head_is_what_it_begins_with(head: bytes, content_type: str) -> None:
    assert media_of(head).content_type == content_type
    assert media_of(head).kind == (
        content_type.split("/")[0]
        if content_type[0] in "aiv" and "octet" not in content_type
        else ""
    )


@given(
    st.binary(max_size=64),
    st.sampled_from(
        [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBPVP8X"]
    ),
)
def test_no_bytes_break_it(rest: bytes, start: bytes) -> None:
    media = media_of(start + rest)

    assert media.width >= 0 and media.height >= 0
