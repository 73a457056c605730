"""Values of runs as the index holds them, and the one order and equality that they have everywhere.

Numbers come first, infinities among them, then nan, then booleans, dates, times of day, texts,
lists, and then runs that have nothing there. All of them are ordered by `in_order`.
"""

from __future__ import annotations

import json
import math
import operator as operators
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from operator import itemgetter
from typing import Any, TypeVar

Cell = str | int | float | bytes | None
"""A value in SQLite. What SQLite has no type for is JSON in a blob, a date `@` and its ISO text.

A changed setting is `~` and its parts.
"""

NAN = b"NaN"
"""A nan in the index: SQLite keeps the number as NULL, which says that nothing is there."""

_CHANGED = b"~"


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """Setting that a resume changed: each value with the step from which it held.

    >>> str(ChangedSetting(((0, 0.01), (880, 0.001))))
    '0.01, then 0.001 from step 880'
    """

    parts: tuple[tuple[int, Any], ...]

    def __str__(self) -> str:
        (_, first), *later = self.parts
        texts = [f"{_spell(value)} from step {step:,}" for step, value in later]
        return ", then ".join([_spell(first), *texts])


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operators.eq,
    "!=": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}
_NUMBER, _NAN, _BOOLEAN, _DATE, _TIME, _TEXT, _LIST, _NOTHING = range(8)
_Item = TypeVar("_Item")


def to_cell(value: Any) -> Cell:
    """Return a value as the index holds it; equal cells are equal values of one type.

    >>> to_cell(True), to_cell(2**64), to_cell([1, "a"]), to_cell(date(2026, 1, 2))
    (b'true', b'18446744073709551616', b'[1, "a"]', b'@2026-01-02')
    """
    match value:
        case float() if value != value:
            return NAN
        case None | str() | float():
            return value
        case int() if not isinstance(value, bool) and -(2**63) <= value < 2**63:
            return int(value)
        case date() | time():
            return b"@" + value.isoformat().encode()
        case ChangedSetting(parts):
            return _CHANGED + json.dumps(parts, default=str).encode()
        case bool() | int() | list() | tuple() | dict():
            text = json.dumps(value, ensure_ascii=False, default=str)
            return text.encode("utf-8", "replace")
        case _:
            return str(value)


def from_cell(cell: Cell) -> Any:
    """Return the value that a cell of the index stands for."""
    if not isinstance(cell, bytes):
        return cell
    if cell == NAN:
        return math.nan
    if cell[:1] == _CHANGED:
        return ChangedSetting(tuple((step, value) for step, value in json.loads(cell[1:])))
    if cell[:1] != b"@":
        return json.loads(cell)
    text = cell[1:].decode()
    if "T" in text:
        return datetime.fromisoformat(text)
    return time.fromisoformat(text) if ":" in text else date.fromisoformat(text)


def fold_cell(cell: Cell) -> str | None:
    """Return a cell as text without case, in which parts are looked for."""
    if isinstance(cell, bytes) and cell[:1] != _CHANGED:
        cell = cell.removeprefix(b"@").decode()
    return None if cell is None else str(from_cell(cell)).casefold()


def is_equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal and of one type: 1 is 1.0, and not True."""
    return identify(left) == identify(right)


def identify(value: Any) -> Cell:
    """Return a cell that equal values have in common, those in lists too.

    >>> identify([1.0, True]) == identify([1, True]), identify([1]) == identify([True])
    (True, False)
    """
    is_plain = type(value) in (str, int, bool)  # most are: a list of runs has millions
    return to_cell(value if is_plain else _without_fractions(value))


def _without_fractions(value: Any) -> Any:
    """Return a value with whole numbers as integers."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list() | tuple():
            return [_without_fractions(each) for each in value]
        case dict():
            return {key: _without_fractions(each) for key, each in sorted(value.items())}
        case _:
            return value


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def compare_cells(left: Cell, operator: str, right: Cell) -> bool:
    """Compare two cells as their values compare; SQLite does so with numbers and texts alone.

    Values of two types are never equal, and neither is less. A changed setting is found by each of
    its values. A time is compared with a day by its day.
    """
    if isinstance(left, bytes) and left[:1] == _CHANGED:
        values = [to_cell(value) for _, value in from_cell(left).parts]
        return any(compare_cells(value, operator, right) for value in values)
    one, other = from_cell(left), from_cell(right)
    if isinstance(one, datetime) and type(other) is date:
        one = one.date()
    (kind, a), (other_kind, b) = _rank(one), _rank(other)
    if kind != other_kind or kind == _NAN:
        equal = kind == other_kind
        return equal if operator == "=" else not equal and operator == "!="
    return _OPERATORS[operator](a, b)


def local_day(ns: int) -> str:
    """Return the day of a moment where the reader is, as ISO text."""
    return datetime.fromtimestamp(ns / 1e9).date().isoformat()


def list_cells(values: Iterable[Any]) -> str:
    """Return values as one text, for `is_among`; a cell in bytes is a list of one text."""
    cells = map(to_cell, values)
    return json.dumps([[cell.decode()] if isinstance(cell, bytes) else cell for cell in cells])


def is_among(cell: Cell, listed: str) -> bool:
    """Return whether a cell equals one of those in a text of `list_cells`."""
    known = (each[0].encode() if isinstance(each, list) else each for each in json.loads(listed))
    return any(compare_cells(cell, "=", each) for each in known)


def in_order(pairs: Iterable[tuple[Any, _Item]], *, descending: bool = False) -> list[_Item]:
    """Return items in the order of their values.

    Descending turns the order of numbers and of texts around, each among themselves. Items that are
    equal stay as they come.

    >>> in_order([(3, "c"), (None, "f"), ("x", "e"), (math.nan, "d"), (-math.inf, "a"), (2, "b")])
    ['a', 'b', 'c', 'd', 'e', 'f']
    """
    ranked: tuple[list[tuple[Any, _Item]], ...] = tuple([] for _ in range(_NOTHING + 1))
    for value, item in pairs:
        if type(value) is float and value == value:  # most are
            ranked[_NUMBER].append((value, item))
        else:
            kind, key = _rank(value)
            ranked[kind].append((key, item))
    return [
        item for same in ranked for _, item in sorted(same, key=itemgetter(0), reverse=descending)
    ]


def _rank(value: Any) -> tuple[int, Any]:
    """Return the place of a value's type among all, and what orders it among its own."""
    match value:
        case None | "":
            return _NOTHING, 0
        case bool():
            return _BOOLEAN, value
        case float() if value != value:
            return _NAN, 0
        case int() | float():
            return _NUMBER, value
        case datetime() if value.tzinfo is not None:
            return _DATE, value.astimezone(UTC).isoformat()
        case date():
            return _DATE, value.isoformat()
        case time():
            return _TIME, value.isoformat()
        case str():
            return _TEXT, value
        case _:
            return _LIST, identify(value)
