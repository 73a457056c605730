"""Coercion of values to the type of a parameter, by its annotation or its default; its limits."""

from __future__ import annotations

import ast
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from assay.config.sources.literals import MAX_VALUE, MalformedError, items_of, value_of
from assay.config.tree import Leaf
from assay.core.diagnostics import Origin
from assay.core.errors import InputError, did_you_mean


class CoercionError(Exception):
    """Value that does not fit; the message says what is wanted, as in "a whole number"."""


def parse_literal(text: str) -> Any:
    """Parse an override's literal, or a tuple, list or dictionary in Python's syntax.

    >>> [parse_literal(text) for text in ("1e-3", "(1, 5)", "{'a': None}", "adam")]
    [0.001, (1, 5), {'a': None}, 'adam']
    """
    try:
        value = value_of(text)
    except MalformedError:
        value = text
    bare = text.strip()
    if value != text or not bare.startswith(("(", "[", "{", '"', "'")) or len(bare) > MAX_VALUE:
        return value
    try:
        literal = ast.literal_eval(bare)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value
    return value if isinstance(literal, bytes | complex | set) else literal


def type_of(default: Any) -> Any:
    """Return the type that stands in for a missing annotation. None stands for any."""
    match default:
        case None:
            return Any
        case tuple() | list():
            kinds = {type_of(item) for item in default}
            item = kinds.pop() if len(kinds) == 1 else Any
            if isinstance(default, tuple):
                return types.GenericAlias(tuple, (item, ...))
            return types.GenericAlias(list, item)
        case Mapping():
            return dict
        case Path():
            return Path
        case bool() | int() | float() | str() | Enum() | date() | time():
            return type(default)
        case _:
            return Any


def fit(value: Any, wanted: Any, text: str | None = None) -> Any:
    """Convert `value` to the type `wanted` without loss.

    Raises CoercionError when that is impossible.

    `text` is the value as typed, if it was: 123 is "123" for a string, and `0.9,0.99` is a
    sequence.
    """
    origin = get_origin(wanted)
    parts = get_args(wanted)
    if origin is Annotated:
        return fit(value, parts[0], text)
    if origin is Literal:
        return _one_of(value, wanted, [type(choice) for choice in parts], text, allowed=parts)
    if origin in (Union, types.UnionType):
        return _one_of(value, wanted, sorted(parts, key=lambda part: part is str), text)
    if wanted is None or wanted is types.NoneType:
        return _check(value is None, value, "none")
    kind = origin or wanted
    if not isinstance(kind, type) or kind in (Any, object):
        return value
    if issubclass(kind, tuple | list):
        return _sequence(value, wanted, text)
    return _single(value, kind, text)


def describe(wanted: Any) -> str:
    """Return the type `wanted` as a phrase: "a whole number".

    >>> describe(tuple[int, ...]), describe(float | None)
    ('a tuple of whole numbers', 'a number or none')
    """
    origin = get_origin(wanted)
    parts = get_args(wanted)
    if origin is Annotated:
        return describe(parts[0])
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin in (Union, types.UnionType):
        return " or ".join(describe(part) for part in parts)
    kind = origin or wanted
    if kind in (Any, object):
        return "anything"
    if not isinstance(kind, type):
        return str(wanted)
    if issubclass(kind, tuple | list):
        name = "tuple" if issubclass(kind, tuple) else "list"
        items = [part for part in parts if part is not Ellipsis]
        many = {int: "whole numbers", float: "numbers", str: "strings"}
        if len(items) > 1:
            return f"a {name} of {len(items)} values"
        return f"a {name} of {many[items[0]]}" if items and items[0] in many else f"a {name}"
    if issubclass(kind, Enum):
        return f"one of {', '.join(member.name for member in kind)}"
    return _NAMES.get(kind, f"a {kind.__name__}")


_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    dict: "a table",
    Path: "a path",
    types.NoneType: "none",
}


def _single(value: Any, kind: type, text: str | None) -> Any:
    match value:
        case bool():
            is_fit = kind is bool
        case int() if kind is float:
            return float(value)
        case float() if kind is int and text is not None and value.is_integer():
            return int(value)  # 1e3, typed by hand
        case str() if issubclass(kind, Enum):
            return _member(value, kind)
        case str() if issubclass(kind, Path):
            return kind(value)
        case Mapping():
            is_fit = issubclass(kind, Mapping | dict)
        case _:
            is_fit = isinstance(value, kind)
    if not is_fit and text is not None:
        if kind is str:
            return text
        if issubclass(kind, Path):
            return kind(text)
        if issubclass(kind, Enum):
            return _member(text, kind, value)
    return _check(is_fit, value, describe(kind))


def _member(name: str, kind: type[Enum], value: Any = None) -> Enum:
    for member in kind:
        if name == member.name or member.value in (name, value):
            return member
    raise CoercionError(describe(kind))


def _sequence(value: Any, wanted: Any, text: str | None) -> Any:
    kind = get_origin(wanted) or wanted
    parts = get_args(wanted)
    typed: list[str | None]
    items = _items(text) if isinstance(value, str) and text is not None else []
    if items:
        typed = [*items]
        value = [parse_literal(item) for item in items]
    elif isinstance(value, tuple | list):
        typed = [None] * len(value)
    else:
        raise CoercionError(describe(wanted))
    is_open = issubclass(kind, list) or (len(parts) == 2 and parts[1] is Ellipsis)
    kinds = list(parts) or [Any] * len(value)
    if is_open and parts:
        kinds = [parts[0]] * len(value)
    if len(kinds) != len(value):
        raise CoercionError(describe(wanted))
    try:
        made = [
            fit(item, each, typed_item)
            for item, each, typed_item in zip(value, kinds, typed, strict=True)
        ]
    except CoercionError:
        raise CoercionError(describe(wanted)) from None
    return tuple(made) if issubclass(kind, tuple) else made


def _items(text: str) -> list[str]:
    """Return the items of `0.9,0.99`, also in parentheses, as they were typed."""
    bare = text.strip()
    if bare.startswith("(") and bare.endswith(")"):
        bare = bare[1:-1]
    items = items_of(bare, Origin(source="<value>")) or []
    return [item.typed for item in items if isinstance(item, Leaf) and item.typed is not None]


def _one_of(
    value: Any,
    wanted: Any,
    kinds: list[Any],
    text: str | None,
    allowed: tuple[Any, ...] | None = None,
) -> Any:
    for kind in kinds:
        try:
            made = fit(value, kind, text)
        except CoercionError:
            continue
        if allowed is None or any(
            type(made) is type(choice) and made == choice for choice in allowed
        ):
            return made
    raise CoercionError(describe(wanted))


def _check(is_fit: bool, value: Any, wanted: str) -> Any:
    if not is_fit:
        raise CoercionError(wanted)
    return value


# --- limits ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """Parameter with one of the values `choices`; the first is the default."""

    choices: tuple[Any, ...]

    @property
    def default(self) -> Any:
        return self.choices[0]

    def requirement(self) -> str:
        return f"one of {', '.join(map(repr, self.choices))}"

    def allows(self, value: Any) -> bool:
        return any(_alike(value, choice) for choice in self.choices)

    def near(self, value: Any) -> str:
        """Return a suggestion for a user who gave `value`."""
        return did_you_mean(str(value), map(str, self.choices))


@dataclass(frozen=True, slots=True)
class Range:
    """Number from `left` to `right`, both included."""

    default: float
    left: float
    right: float

    def requirement(self) -> str:
        match math.isinf(self.left), math.isinf(self.right):
            case True, True:
                return "a number"
            case True, False:
                return f"at most {self.right!r}"
            case False, True:
                return f"at least {self.left!r}"
            case _:
                return f"from {self.left!r} to {self.right!r}"

    def allows(self, value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.left <= value <= self.right  # false for nan

    def near(self, value: Any) -> str:
        return ""


def choice(*choices: Any) -> Any:
    """Declare a parameter that is one of `choices`, by default the first.

    Typed Any so that it may be assigned to a parameter of any type.
    """
    if not choices:
        raise InputError("choice() needs at least one value.")
    return Choice(choices)


def arange(default: float, left: float = -math.inf, right: float = math.inf) -> Any:
    """Declare a number with a default that stays between `left` and `right`, both included."""
    limit = Range(default, left, right)
    if not limit.allows(default):
        raise InputError(
            f"arange({default!r}, {left!r}, {right!r}): the default must be {limit.requirement()}."
        )
    return limit


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
