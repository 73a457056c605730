"""Protocol buffers by the field: enough to read messages whose definition one knows."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator

Field = int | bytes

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_SIGN = 1 << 63


class ProtobufError(ValueError):
    """These bytes are no message."""


def fields(message: bytes) -> Iterator[tuple[int, Field]]:
    """Yield number and value of each field: integers unsigned, all others as their bytes."""
    at = 0
    end = len(message)
    try:
        while at < end:
            tag = message[at]
            at += 1
            if tag > 0x7F:
                tag, at = varint(message, at - 1)
            kind = tag & 7
            if kind == 0:
                value, at = varint(message, at)
                yield tag >> 3, value
                continue
            if kind == 2:
                size = message[at]
                at += 1
                if size > 0x7F:
                    size, at = varint(message, at - 1)
            elif kind == 1:
                size = 8
            elif kind == 5:
                size = 4
            else:
                raise ProtobufError(f"there is no wire type {kind}")
            if at + size > end:
                raise ProtobufError("a field is longer than its message")
            yield tag >> 3, message[at : at + size]
            at += size
    except IndexError:
        raise ProtobufError("the message ends inside of a field") from None


def by_number(message: bytes) -> dict[int, list[Field]]:
    """All fields; asking for one that is not there gives none."""
    found: dict[int, list[Field]] = defaultdict(list)
    for number, value in fields(message):
        found[number].append(value)
    return found


def whole(values: list[Field]) -> int:
    """The last of these as a signed number; 0 when there is none."""
    return to_int64(values[-1]) if values and isinstance(values[-1], int) else 0


def text(values: list[Field]) -> str:
    """The last of these as text; "" when there is none."""
    return as_text(values[-1]) if values else ""


def part(values: list[Field]) -> dict[int, list[Field]]:
    """The last of these as a message; an empty one when there is none."""
    return by_number(part_bytes(values[-1])) if values else by_number(b"")


def part_bytes(value: Field) -> bytes:
    if isinstance(value, int):
        raise ProtobufError("a number stands where a part should")
    return value


def as_text(value: Field) -> str:
    return part_bytes(value).decode("utf-8", "replace")


def to_int64(value: int) -> int:
    """int64 as it is written: its two's complement."""
    return value - (_SIGN << 1) if value >= _SIGN else value


def zigzag(value: int) -> int:
    """sint64 as it is written."""
    return value >> 1 ^ -(value & 1)


def double(value: Field) -> float:
    return _number(_DOUBLE, value)


def single(value: Field) -> float:
    return _number(_FLOAT, value)


def numbers_in(values: list[Field], form: str) -> list[float]:
    """Return repeated numbers, packed or not; `form` is that of `struct`, or "v" for varints."""
    found: list[float] = []
    for value in values:
        if isinstance(value, int):
            found.append(to_int64(value))
        elif form == "v":
            at = 0
            while at < len(value):
                try:
                    one, at = varint(value, at)
                except IndexError:
                    raise ProtobufError("the message ends inside of a field") from None
                found.append(to_int64(one))
        else:
            size = struct.calcsize(form)
            found += struct.unpack(
                f"<{len(value) // size}{form}", value[: len(value) // size * size]
            )
    return found


def _number(form: struct.Struct, value: Field) -> float:
    data = part_bytes(value)
    if len(data) != form.size:
        raise ProtobufError(f"a number has {len(data)} bytes, not {form.size}")
    number: float = form.unpack(data)[0]
    return number


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned varint at `at`, and its end; IndexError when the message ends first."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (_SIGN << 1) - 1, at
        shift += 7
        if shift > 63:
            raise ProtobufError("a whole number has more than ten bytes")
