"""Pictures as text: two pixels a character, in colours or five greys."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import InputError
from assay.core.terminal import style

_GREYS = " ░▒▓█"
_HEAD = b"\x89PNG\r\n\x1a\n"
_MOST_PIXELS = 4_000_000
_LONGEST_SIDE = 10_000
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}


def picture(png: bytes, *, width: int, height: int, color: bool) -> list[str]:
    """Return a PNG file as at most `height` lines of `width` characters, never enlarged.

    InputError for another kind of file, and for a PNG with a palette, 16 bits or interlaced lines.
    """
    image = decode_png(png)
    rows, columns = image.shape[:2]
    scale = max(columns / width, rows / (2 * height), 1.0)
    across = max(1, int(columns / scale))
    down = max(1, int(rows / scale))
    kept_rows = np.arange(down) * rows // down
    kept_columns = np.arange(across) * columns // across
    image = image[kept_rows][:, kept_columns]
    if down % 2:
        image = np.concatenate([image, np.zeros_like(image[:1])])
    upper = image[::2]
    lower = image[1::2]
    if color:
        lines = zip(upper.tolist(), lower.tolist(), strict=True)
        return [_color_line(top, low) for top, low in lines]
    grey = (upper.astype(int) + lower).mean(axis=2) / 2
    return ["".join(_GREYS[round(value / 255 * 4)] for value in line) for line in grey.tolist()]


def _color_line(top: list[list[int]], low: list[list[int]]) -> str:
    """An upper half block: its colour is the upper pixel, the colour behind it the lower one."""
    pairs = zip(top, low, strict=True)
    return "".join(
        style("▀", f"38;2;{r};{g};{b};48;2;{x};{y};{z}") for (r, g, b), (x, y, z) in pairs
    )


def decode_png(png: bytes) -> NDArray[np.uint8]:
    """Return height x width x 3 bytes; InputError for no PNG, a damaged or a too large one."""
    try:
        return _decode(png)
    except (struct.error, zlib.error, ValueError, IndexError) as error:
        raise InputError("This PNG file is damaged.") from error


def _decode(png: bytes) -> NDArray[np.uint8]:
    if not png.startswith(_HEAD):
        raise InputError("This is no PNG file.")
    at = len(_HEAD)
    packed = []
    width = height = depth = kind = interlaced = 0
    while at + 8 <= len(png):
        size, name = struct.unpack_from(">I4s", png, at)
        data = png[at + 8 : at + 8 + size]
        if name == b"IHDR":
            width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", data)
        elif name == b"IDAT":
            packed.append(data)
        at += 12 + size
    if depth != 8 or kind not in _CHANNELS or interlaced:
        raise InputError(
            "A PNG file of this kind cannot be drawn here.", fix="assay find shows where it lies."
        )
    if not 0 < width * height <= _MOST_PIXELS or max(width, height) > _LONGEST_SIDE:
        raise InputError(f"A picture of {width} x {height} pixels cannot be drawn here.")
    channels = _CHANNELS[kind]
    # No more than the picture has: a few bytes may be packed zeros without end.
    most = height * (width * channels + 1)
    unpacked = zlib.decompressobj().decompress(b"".join(packed), most)
    lines = np.frombuffer(unpacked, np.uint8).reshape(height, width * channels + 1)
    image = _undo_filters(lines[:, 1:].reshape(height, width, channels), lines[:, 0])
    return image[:, :, :3] if channels >= 3 else image[:, :, :1].repeat(3, axis=2)


def _undo_filters(image: NDArray[np.uint8], filters: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo the filter of each line, which predicts a pixel from those to the left and above.

    A pixel waits for three others, so that all of a diagonal are known at once.
    """
    if not filters.any():
        return image
    rows, columns, _ = image.shape
    out = np.zeros((rows + 1, columns + 1, image.shape[2]), np.int16)
    for diagonal in range(rows + columns - 1):
        y = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        x = diagonal - y
        left, up, corner = out[y + 1, x], out[y, x + 1], out[y, x]
        by_left, by_up = abs(up - corner), abs(left - corner)
        by_corner = abs(left + up - 2 * corner)
        # The first of equals, as the Paeth filter wants.
        paeth = np.where(by_up <= by_corner, up, corner)
        paeth = np.where((by_left <= by_up) & (by_left <= by_corner), left, paeth)
        kinds = (np.zeros_like(left), left, up, (left + up) // 2, paeth)
        out[y + 1, x + 1] = (image[y, x] + np.choose(filters[y, None], kinds)) & 0xFF
    return out[1:, 1:].astype(np.uint8)
