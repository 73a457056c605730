"""Codec between dataclasses and plain JSON data, for every JSON file of a record."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import reprlib
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from assay.core.directory import open_directory
from assay.core.errors import RecordError
from assay.core.regular_file import open_regular, read_bytes
from assay.core.terminal import escaped_json

Fact = TypeVar("Fact")

MAX_DEPTH = 100
_I64 = 1 << 63
_NON_FINITE = ("nan", "inf", "-inf")
_SPELT = frozenset({str, int, bool, type(None)})
_PLAIN = _SPELT | {float}


def to_plain(value: Any) -> Any:
    """Convert dataclasses to dictionaries and tuples to lists.

    A field that is None, and is None by default, is left out.
    """
    if type(value) in _PLAIN:  # most of what is written: the rest is asked one by one
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {
            field.name: to_plain(item)
            for field, item in pairs
            if item is not None or field.default is not None
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def dataclass_from(kind: type[Fact], data: Any, *, where: str = "") -> Fact:
    """Build the dataclass `kind` from plain data. Unknown keys, of a newer version, are ignored.

    Raises RecordError naming the path of the first value that is missing or of the wrong type.
    """
    return _decode(kind, data, where or kind.__name__)  # type: ignore[no-any-return]


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return JSON, compact on one line unless `indent` is given.

    Non-finite numbers are the strings "inf", "-inf", "nan", so that any reader copes; what is not
    printed is escaped.
    """
    separators = (",", ":") if indent is None else None
    data = spell_numbers(to_plain(value))
    text = json.dumps(data, ensure_ascii=False, indent=indent, separators=separators)
    # Also file names that are not UTF-8: they reach Python as lone surrogates, which no file can
    # hold.
    return escaped_json(text)


def read_json(path: Path, kind: type[Fact], *, version: int, limit: int) -> Fact:
    """Read a JSON file of at most `limit` bytes with a top-level `format` number.

    Raises FileNotFoundError when the file is missing, RecordError when it cannot be read or has a
    newer format.
    """
    try:
        data = read_bytes(path, limit)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RecordError(
            f"{path.name} cannot be read: {error.strerror or error}.", where=str(path)
        ) from error
    return decode_json(data, path, kind, version=version)


def decode_json(text: bytes, path: Path, kind: type[Fact], *, version: int) -> Fact:
    """Decode the text of the JSON file `path`, which need not be there; RecordError if damaged."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise RecordError(f"{path.name} cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict):
        raise RecordError(f"{path.name} is not a JSON object.", where=str(path))
    found = data.get("format")
    if not isinstance(found, int) or found < 1:
        raise RecordError(f"{path.name} does not say its format.", where=str(path))
    if found > version:
        fix = "Read it with the assay that wrote it, or a newer one."
        raise RecordError(
            f"{path.name} has format {found}; this assay knows {version}.", where=str(path), fix=fix
        )
    return dataclass_from(kind, data, where=path.name)


def parse_json(text: bytes | str) -> Any:
    """Parse JSON. Raises ValueError for a syntax error and for nesting beyond MAX_DEPTH."""
    try:
        data = json.loads(text)
        if isinstance(data, dict | list) and _is_deeper(data, MAX_DEPTH - 1):
            raise RecursionError
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    return data


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace `path` atomically: readers see the old file or the new one, never a part."""
    text = dumps(value, indent=1) + "\n"
    write_atomic(path, text.encode("utf-8"), durable=durable)


def write_atomic(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Write a temporary neighbour, sync it, and rename it over `path`.

    `durable` also survives power loss. Without a `mode` the file is as open as its folder. A link
    in its place is replaced, not followed.
    """
    with open_directory(path.parent, follow=True) as folder:
        folder.write(path.name, data, durable=durable, mode=mode)


def sync_file(path: Path) -> None:
    """Flush a file to disk, so that its bytes survive power loss."""
    descriptor = open_regular(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def number(value: Any) -> float:
    """Parse a number that `dumps` wrote: a JSON number, or "inf", "-inf" or "nan"."""
    return float(value)


def parse_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return named values as they were before `dumps`: numbers that JSON lacks as numbers.

    >>> parse_numbers({"loss": "inf", "name": "infinite"})
    {'loss': inf, 'name': 'infinite'}
    """
    return {
        name: float(value) if isinstance(value, str) and value in _NON_FINITE else value
        for name, value in values.items()
    }


def spell_numbers(value: Any) -> Any:
    """Return plain data with the numbers that JSON lacks as the texts that `dumps` writes."""
    if type(value) in _SPELT:
        return value
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return repr(float(value))  # float: numpy's own repr says "np.float64(nan)"
    if isinstance(value, dict):
        return {key: spell_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spell_numbers(item) for item in value]
    return value


def _is_deeper(data: Any, levels: int) -> bool:
    """Return whether lists and tables in plain data are nested more than so many levels deep."""
    items = data.values() if isinstance(data, dict) else data
    inner = [item for item in items if isinstance(item, dict | list)]
    return bool(inner) and (levels == 0 or any(_is_deeper(item, levels - 1) for item in inner))


@cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """Return name, annotation and whether it must be given, of each field of a dataclass."""
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    return tuple(
        (each.name, hints[each.name], each.default is missing and each.default_factory is missing)
        for each in dataclasses.fields(kind)
    )


def _decode(hint: Any, data: Any, where: str) -> Any:
    """Return `data` as a value of the annotation `hint`. Raises RecordError when it is none."""
    if hint is Any:
        return data
    if type(data) is hint and hint in (str, bool, float):  # most values are one of these
        return data
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint), data, where)
    if origin is not None:
        return _decode_generic(origin, get_args(hint), data, where)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, where)
    if hint is type(None) and data is None:
        return None
    is_bool = isinstance(data, bool)
    if hint is float and isinstance(data, int | float | str) and not is_bool:
        with contextlib.suppress(ValueError, OverflowError):
            return float(data)
    if hint is int and isinstance(data, int) and not -_I64 <= data < _I64:
        digits = len(str(data).lstrip("-"))
        raise RecordError(f"{where} is a number of {digits} digits; expected one of 64 bits.")
    if isinstance(hint, type) and isinstance(data, hint) and (hint is bool or not is_bool):
        return data
    raise RecordError(
        f"{where} is {reprlib.repr(data)}; expected {getattr(hint, '__name__', hint)}."
    )


def _decode_generic(origin: Any, arguments: tuple[Any, ...], data: Any, where: str) -> Any:
    """Return `data` as a Literal, a list, a tuple or a mapping of the given item types."""
    if origin is Literal:
        if data in arguments:
            return data
        choices = ", ".join(map(repr, arguments))
        raise RecordError(f"{where} is {reprlib.repr(data)}; expected one of {choices}.")
    if origin in (list, tuple):
        if not isinstance(data, list):
            raise RecordError(f"{where} is {reprlib.repr(data)}; expected a list.")
        items = [_decode(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(data)]
        return items if origin is list else tuple(items)
    if issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise RecordError(f"{where} is {reprlib.repr(data)}; expected a table.")
        return {key: _decode(arguments[1], each, f"{where}.{key}") for key, each in data.items()}
    raise AssertionError(f"no field of a record has the type {origin}")


def _decode_union(choices: tuple[Any, ...], data: Any, where: str) -> Any:
    errors = []
    for choice in choices:
        try:
            return _decode(choice, data, where)
        except RecordError as error:
            errors.append(error)
    raise errors[0]


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise RecordError(f"{where} is {reprlib.repr(data)}; expected a table.")
    values = {}
    for name, hint, is_required in _fields(kind):
        if name in data:
            values[name] = _decode(hint, data[name], f"{where}.{name}")
        elif is_required:
            raise RecordError(f"{where}.{name} is missing.")
    return kind(**values)
