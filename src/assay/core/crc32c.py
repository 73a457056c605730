"""Castagnoli's cyclic redundancy check, as the files of TensorBoard have it."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_DELTA = 0xA282EAD8


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


TABLE = _table()
"""By the lowest byte, what is added when it is shifted out."""


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = _MASK
    table = TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _MASK


def masked(crc: int) -> int:
    """Return a checksum in the masked form that a TFRecord stores.

    A checksum over data that itself holds checksums would otherwise be weak.
    """
    return ((crc >> 15 | crc << 17) + _DELTA) & _MASK
