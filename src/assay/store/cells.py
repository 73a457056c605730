"""Values of runs as the index holds them, and the one order and logic that they have everywhere.

Numbers come first, infinities among them, then nan, then texts, then runs that have nothing there.
All of them are ordered by `in_order`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, TypeVar

Cell = str | int | float | bytes | None

NAN = b"nan"
"""A nan in the index: SQLite keeps the number as NULL, which says that nothing is there."""

_Item = TypeVar("_Item")


def to_cell(value: Any) -> Cell:
    """Return a value as the index holds it: numbers and texts as they are, all else as text."""
    match value:
        case float() if value != value:
            return NAN
        case None | str() | float():
            return value
        case int():
            if -(2**63) <= value < 2**63:
                return int(value)
            return float(value) if abs(value) < 1 << 1000 else str(value)
        case list() | dict():
            return json.dumps(value, ensure_ascii=False, default=str)
        case _:
            return str(value)


def from_cell(cell: Cell) -> str | int | float | None:
    """Return the value that a cell of the index stands for."""
    return math.nan if isinstance(cell, bytes) else cell


def in_order(pairs: Iterable[tuple[Any, _Item]], *, descending: bool = False) -> list[_Item]:
    """Return items in the order of their values.

    Descending turns the order of numbers and of texts around, each among themselves. Items that are
    equal stay as they come.

    >>> in_order([(3, "c"), (None, "f"), ("x", "e"), (math.nan, "d"), (-math.inf, "a"), (2, "b")])
    ['a', 'b', 'c', 'd', 'e', 'f']
    """
    ranked: tuple[list[tuple[Any, _Item]], ...] = ([], [], [], [])
    for value, item in pairs:
        if type(value) is float and value == value:  # most are
            ranked[0].append((value, item))
            continue
        cell = to_cell(value)
        match cell:
            case None | "":
                ranked[3].append((0, item))
            case str():
                ranked[2].append((cell, item))
            case bytes():
                ranked[1].append((0, item))
            case _:
                ranked[0].append((cell, item))
    return [
        item for same in ranked for _, item in sorted(same, key=itemgetter(0), reverse=descending)
    ]
