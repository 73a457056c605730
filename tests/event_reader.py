"""Independent reader of TensorBoard event files: TFRecord and protocol buffers by hand."""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Events:
    scalars: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    images: dict[str, list[tuple[int, int, int, bytes]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    histograms: dict[str, list[tuple[int, dict[str, Any]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    texts: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))


def crc32c(data: bytes) -> int:
    """Bit by bit, as the definition has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        for offset, size in ((at, 8), (at + 12, length)):
            crc = crc32c(data[offset : offset + size])
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack_from("<I", data, offset + size) == (masked,)
        found.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    return found


def fields(message: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = varint()
        match tag & 7:
            case 0:
                found[tag >> 3].append(varint())
            case 1:
                found[tag >> 3].append(struct.unpack_from("<d", message, at)[0])
                at += 8
            case 2:
                size = varint()
                found[tag >> 3].append(message[at : at + size])
                at += size
            case 5:
                found[tag >> 3].append(struct.unpack_from("<f", message, at)[0])
                at += 4
            case kind:
                raise AssertionError(f"wire type {kind}")
    return found


def read(folder: Path) -> Events:
    """All events of the one event file of a folder."""
    (path,) = folder.glob("events.out.tfevents.*")
    first, *others = records(path.read_bytes())
    assert fields(first)[3] == [b"brain.Event:2"]
    events = Events()
    for record in others:
        event = fields(record)
        (step,) = event[2]
        for value in fields(event[5][0])[1]:
            one = fields(value)
            tag = one[1][0].decode()
            if 2 in one:
                events.scalars[tag].append((step, one[2][0]))
            elif 4 in one:
                image = fields(one[4][0])
                events.images[tag].append((step, image[1][0], image[2][0], image[4][0]))
            elif 5 in one:
                histogram = fields(one[5][0])
                counts = struct.unpack(f"<{len(histogram[7][0]) // 8}d", histogram[7][0])
                found = {
                    "min": histogram[1][0],
                    "max": histogram[2][0],
                    "num": histogram[3][0],
                    "counts": counts,
                }
                events.histograms[tag].append((step, found))
            elif 8 in one:
                assert fields(fields(one[9][0])[1][0])[1] == [b"text"]
                events.texts[tag].append((step, fields(one[8][0])[8][0].decode()))
    return events


def pixels_of(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and the RGB bytes of a PNG whose lines are not filtered."""
    at, packed, width, height = 8, b"", 0, 0
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        data = png[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + data) == struct.unpack_from(">I", png, at + 8 + size)[0]
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", data)
        if kind == b"IDAT":
            packed += data
        at += 12 + size
    lines = zlib.decompress(packed)
    stride = 1 + 3 * width
    return width, height, b"".join(lines[i * stride + 1 : (i + 1) * stride] for i in range(height))
