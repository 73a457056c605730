"""Kinds of media that may be shown, told by the bytes themselves, never by what their name says."""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEAD_BYTES = 64 << 10
MAX_PIXELS = 40_000_000
"""A picture with more is not drawn by itself: a browser takes four bytes for each pixel."""


@dataclass(frozen=True, slots=True)
class Media:
    """Kind of a file. `content_type` is safe for a browser; width and height are of pictures."""

    content_type: str = "application/octet-stream"
    width: int = 0
    height: int = 0

    @property
    def kind(self) -> str:
        """Return "image", "audio", "video", or "" for what is only handed out."""
        kind = self.content_type.partition("/")[0]
        return kind if kind in ("image", "audio", "video") else ""

    @property
    def is_too_large(self) -> bool:
        """Return True for a picture of more pixels than are drawn, or that hides how many it has.

        A JPEG hides them behind more than `HEAD_BYTES` of comments.
        """
        return self.kind == "image" and not 0 < self.width * self.height <= MAX_PIXELS


def media_of(head: bytes) -> Media:
    """Return what a file is that begins like this.

    >>> media_of(bytes.fromhex("89504e470d0a1a0a0000000d494844520000000300000002")).width
    3
    """
    if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
        return Media("image/png", *struct.unpack(">II", head[16:24]))
    if head.startswith((b"GIF87a", b"GIF89a")) and len(head) >= 10:
        return Media("image/gif", *struct.unpack("<HH", head[6:10]))
    if head.startswith(b"\xff\xd8\xff"):
        return Media("image/jpeg", *_jpeg_size(head))
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return Media("image/webp", *_webp_size(head))
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return Media("audio/wav")
    if head.startswith((b"ID3", b"\xff\xfb", b"\xff\xf3")):
        return Media("audio/mpeg")
    if head.startswith(b"OggS"):
        return Media("audio/ogg")
    if head.startswith(b"fLaC"):
        return Media("audio/flac")
    if head[4:8] == b"ftyp":
        return Media("video/mp4")
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return Media("video/webm")
    return Media("text/plain; charset=utf-8") if _is_text(head) else Media()


def _jpeg_size(head: bytes) -> tuple[int, int]:
    at = 2
    while at + 9 < len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        length = int.from_bytes(head[at + 2 : at + 4], "big")
        if marker in (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return 0, 0


def _webp_size(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8X" and len(head) >= 30:
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L" and len(head) >= 25:
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(head) >= 30:
        width, height = struct.unpack("<HH", head[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    for cut in range(4):  # the head may end inside of a character
        try:
            head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return True
    return False
