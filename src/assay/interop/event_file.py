"""TensorBoard event files, written without TensorBoard: scalars, text, images, histograms.

The format is TFRecord (length, masked CRC-32C of it, data, masked CRC-32C of that) around the
protocol buffers Event and Summary; of those only what TensorBoard shows is written here, field by
field.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import google_crc32c

from assay.core.directory import create_file, make_directory

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DT_STRING = 7
_MASK_DELTA = 0xA282EAD8


class EventFile:
    """New TensorBoard event file in `folder`. Any thread may add; `flush` writes it out."""

    def __init__(self, folder: Path) -> None:
        make_directory(folder)
        now = time.time()
        name = (
            f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{id(self):x}"
        )
        self.path = folder / name
        self._file = os.fdopen(create_file(self.path), "wb")
        self._lock = threading.Lock()
        self._put(_double(1, now) + _text(3, "brain.Event:2"))
        self.flush()

    def scalars(
        self, values: Sequence[tuple[str, float]], step: int, at_s: float | None = None
    ) -> None:
        self._add(b"".join(_value(tag, _float(2, value)) for tag, value in values), step, at_s)

    def text(self, tag: str, text: str, step: int, at_s: float | None = None) -> None:
        """Markdown is shown as such."""
        tensor = _number(1, _DT_STRING) + _field(2, _field(2, _number(1, 1))) + _text(8, text)
        about = _field(9, _field(1, _text(1, "text")))
        self._add(_value(tag, about + _field(8, tensor)), step, at_s)

    def image(
        self, tag: str, png: bytes, width: int, height: int, step: int, at_s: float | None = None
    ) -> None:
        image = _number(1, height) + _number(2, width) + _number(3, 3) + _field(4, png)
        self._add(_value(tag, _field(4, image)), step, at_s)

    def histogram(
        self,
        tag: str,
        edges: Sequence[float],
        counts: Sequence[float],
        step: int,
        *,
        total: float,
        squares: float,
    ) -> None:
        """Add a histogram: one more edge than counts, and sums of values and of squares."""
        limits = list(edges)
        histogram = (
            _double(1, edges[0])
            + _double(2, edges[-1])
            + _double(3, float(sum(counts)))
            + _double(4, total)
            + _double(5, squares)
            + _field(6, struct.pack(f"<{len(limits)}d", *limits))
            + _field(7, struct.pack(f"<{len(counts) + 1}d", 0.0, *counts))
        )
        self._add(_value(tag, _field(5, histogram)), step, None)

    def flush(self) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _add(self, values: bytes, step: int, at_s: float | None) -> None:
        event = (
            _double(1, time.time() if at_s is None else at_s) + _number(2, step) + _field(5, values)
        )
        self._put(event)

    def _put(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        record = length + _masked_crc(length) + event + _masked_crc(event)
        with self._lock:
            if not self._file.closed:
                self._file.write(record)


def _value(tag: str, payload: bytes) -> bytes:
    return _field(1, _text(1, tag) + payload)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative number is its two's complement in ten bytes
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond what 32 bits hold
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | _FIXED32) + packed


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _field(field, text.encode("utf-8", "replace"))


def _masked_crc(data: bytes) -> bytes:
    """Return the CRC-32C of `data` as a TFRecord has it, rotated and shifted by a constant.

    >>> _masked_crc(b"123456789").hex()
    'e5b08ac7'
    """
    crc: int = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)
