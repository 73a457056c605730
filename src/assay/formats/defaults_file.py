"""Format of `defaults.json`, version 1: the default values that a run took."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.formats.json_codec import decode_json, read_json, write_json

FORMAT = 1
MAX_BYTES = 16 << 20
FILE_NAME = "defaults.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One value that nobody gave: its key, how it reads, and whose default it is.

    `injected` are arguments that were filled with an object of the run; `value` then says which.
    """

    key: str
    value: str
    owner: str
    injected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """All defaults that a run took, in the order of the config."""

    format: int = FORMAT
    taken: tuple[Taken, ...] = ()


def read(folder: Path) -> tuple[Taken, ...]:
    """Return the defaults that a run took; () for a run recorded without the file.

    Raises RecordError when the file cannot be read.
    """
    try:
        return read_json(folder / FILE_NAME, Defaults, version=FORMAT, limit=MAX_BYTES).taken
    except FileNotFoundError:
        return ()


def decode(data: bytes) -> tuple[Taken, ...]:
    """Return the defaults in the bytes of a file; RecordError when they cannot be read."""
    return decode_json(data, Path(FILE_NAME), Defaults, version=FORMAT).taken


def parse_value(text: str) -> Any:
    """Return the value that reads as `text`; an object without a form of its own as the text.

    >>> parse_value("none"), parse_value("1e-08"), parse_value('"fp32"'), parse_value("True")
    (None, 1e-08, 'fp32', True)
    """
    known = {"none": None, "true": True, "false": False}
    if text.lower() in known:
        return known[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def write(folder: Path, taken: tuple[Taken, ...]) -> None:
    """Replace the file. OSError when it cannot be written."""
    write_json(folder / FILE_NAME, Defaults(taken=taken), durable=False)
