"""Keys of the standard sections: kind, bounds and default, written as fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, TypeVar

Kind = Literal[
    "text",  # a string
    "int",
    "float",  # an int will do
    "bool",
    "choice",  # one of `choices`
    "period",  # "1 epoch", "100 steps", "never"
    "steps",  # the same without epochs
    "duration",  # "90 s", "5 min", "2 h"
    "names",  # a list of strings
    "switch",  # true, false, one of `choices`, or a list of patterns of names
    "numbers",  # a table of free names, each a number, or again such a table
    "texts",  # a table of free names, each a string
    "call",  # type = target plus its arguments, or "@path" of one; see `keys` and `named`
    "calls",  # a list of calls
    "table",  # exactly `keys`
    "tables",  # tables of free names, each with exactly `keys`
]

Scalar = str | int | float | bool
Section = TypeVar("Section")

_OF_KEY = "key"
_SECTION = "section"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a config.

    `weights`: the key is part of what determines the weights, so the hash of a config covers it.
    """

    name: str
    kind: Kind
    doc: str
    default: Scalar | None = None
    required: bool = False
    weights: bool = True
    minimum: float | None = None
    maximum: int | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()  # of an int: words it takes besides numbers
    keys: tuple[Key, ...] = ()  # of a call: what stands there where there is no `type`
    named: bool = False  # of a call: there may be several in its place, each under a name
    one_of: tuple[str, ...] = ()  # of a table: at least one of these is given
    short: str = ""  # of a table: the key that a string alone stands for

    def key(self, name: str) -> Key | None:
        """Return the key `name` of a table."""
        return next((key for key in self.keys if key.name == name), None)


def key(
    kind: Kind,
    doc: str,
    *,
    default: Scalar | None = None,
    implied: Scalar | None = None,
    **rest: Any,
) -> Any:
    """Return the dataclass field of one key.

    `implied` is what stands for a key that is not given, where the code has to know that it was
    not: the field itself is then None.
    """
    described = {"kind": kind, "doc": doc, "default": implied if default is None else default}
    return field(default=default, metadata={_OF_KEY: {**described, **rest}})


def mapping(kind: Kind, doc: str) -> Any:
    """Return the dataclass field of a table with free names."""
    return field(default_factory=dict, metadata={_OF_KEY: {"kind": kind, "doc": doc}})


def table(
    section: type, doc: str, *, kind: Kind = "table", optional: bool = False, **rest: Any
) -> Any:
    """Return the dataclass field of a table with the keys of `section`.

    A table that is absent has all defaults, or is None where it is `optional`.
    """
    metadata = {_OF_KEY: {"kind": kind, "doc": doc, **rest}, _SECTION: section}
    absent: Callable[[], Any] = section
    if kind == "tables":
        absent = dict
    elif optional:
        return field(default=None, metadata=metadata)
    return field(default_factory=absent, metadata=metadata)


def keys_of(section: type) -> tuple[Key, ...]:
    """Return the keys that a dataclass of sections describes."""
    return tuple(_key_of(each) for each in fields(section) if _OF_KEY in each.metadata)


def _key_of(each: Field[Any]) -> Key:
    inner = each.metadata.get(_SECTION)
    keys = keys_of(inner) if inner is not None else ()
    return Key(name=each.name, keys=keys, **each.metadata[_OF_KEY])


def read_section(section: type[Section], values: Any) -> Section:
    """Return a section with plain values that have passed the check.

    A key that is absent or None takes its default. Keys that are not standard are left out.
    """
    if not isinstance(values, Mapping):
        values = {}
    given = {}
    for each in fields(section):  # type: ignore[arg-type]
        value = values.get(each.name)
        if value is not None:
            given[each.name] = _read_value(each, value)
        elif each.default is MISSING and each.default_factory is MISSING:
            given[each.name] = None
    return section(**given)


def _read_value(each: Field[Any], value: Any) -> Any:
    inner = each.metadata.get(_SECTION)
    if inner is None:
        return value
    described = each.metadata[_OF_KEY]
    if described["kind"] == "tables":
        return {name: read_section(inner, one) for name, one in value.items()}
    if isinstance(value, str) and described.get("short"):
        value = {described["short"]: value}
    return read_section(inner, value)
