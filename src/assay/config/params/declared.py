"""Parameters declared in the bodies of classes, with their lines, merged along the bases."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from assay.config.sources.classes import class_body_lines
from assay.config.tree import dotted
from assay.core.diagnostics import Origin
from assay.core.errors import InputError

REQUIRED: Any = object()
"""The default of a parameter that is declared without one."""

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Declared:
    """Declared parameter: its default, or REQUIRED, and the class that declares it."""

    default: Any
    owner: type
    origin: Origin


def declarations(cls: type, namespace: str, origin: Origin) -> dict[Names, Declared]:
    """Return the parameters in the body of `cls`, in order: annotated names and plain values."""
    annotations = inspect.get_annotations(cls)
    before = (namespace,) if namespace else ()
    names = [
        name for name in dict.fromkeys([*cls.__dict__, *annotations]) if not name.startswith("_")
    ]
    names = [
        name
        for name in names
        if not _is_class_variable(annotations.get(name))
        and (name in annotations or not _belongs_to_class(cls.__dict__[name]))
    ]
    lines = class_body_lines(cls.__name__, origin) if names else {}
    return {
        (*before, name): Declared(
            default=_default(cls.__dict__.get(name, REQUIRED)),
            owner=cls,
            origin=Origin(source=origin.source, line=lines.get(name, origin.line)),
        )
        for name in names
    }


def join(cls: type, own: Mapping[type, Mapping[Names, Declared]]) -> dict[Names, Declared]:
    """Return the parameters of `cls` and its bases.

    Raises InputError when two unrelated bases differ in a default.
    """
    all_: dict[Names, Declared] = {}
    conflicts: dict[Names, tuple[Declared, Declared]] = {}
    for owner in reversed(cls.__mro__):
        for path, declared in own.get(owner, {}).items():
            before = all_.get(path)
            if before is not None and clash(before.owner, owner, before.default, declared.default):
                conflicts[path] = before, declared
            else:
                conflicts.pop(path, None)
            all_[path] = declared
    for path, (one, other) in conflicts.items():
        raise conflict(cls, dotted(path), (one.owner, one.default), (other.owner, other.default))
    return all_


def clash(one: type, other: type, a: Any, b: Any) -> bool:
    """Return whether two unrelated classes want different values."""
    related = issubclass(other, one) or issubclass(one, other)
    return not related and not (type(a) is type(b) and bool(a == b))


def conflict(cls: type, key: str, one: tuple[type, Any], other: tuple[type, Any]) -> InputError:
    return InputError(
        f"{cls.__name__} inherits two defaults of `{key}`: {one[1]!r} from {one[0].__name__}"
        f" and {other[1]!r} from {other[0].__name__}.",
        fix=f"Declare `{key}` in {cls.__name__} itself, or give one of them a namespace:"
        f' class {other[0].__name__}(..., namespace="...").',
    )


def hints_of(cls: type) -> Mapping[str, Any]:
    """Return the resolved annotations of `cls` and its bases; none if one cannot be resolved."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


def _is_class_variable(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return re.match(r"(typing\.|t\.)?ClassVar\b", annotation) is not None
    return annotation is ClassVar or typing.get_origin(annotation) is ClassVar


def _default(value: Any) -> Any:
    """Return the default of a dataclass `field(...)`, and any other value as it is."""
    if not isinstance(value, dataclasses.Field):
        return value
    if value.default_factory is not dataclasses.MISSING:
        return value.default_factory()
    return REQUIRED if value.default is dataclasses.MISSING else value.default


def _belongs_to_class(value: Any) -> bool:
    """Return whether a value is a function, property or other descriptor, or a nested class."""
    return hasattr(type(value), "__get__") or isinstance(value, type)
