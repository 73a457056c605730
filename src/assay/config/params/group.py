"""Nested parameters: a dictionary with attribute access, limits, and the origin of each value."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from assay.config.params.coercion import Choice, Range, type_of
from assay.config.tree import KeyPath, dotted
from assay.core.diagnostics import Origin
from assay.core.errors import InputError, did_you_mean

_HERE = str(Path(__file__).parent)


@dataclass(slots=True)
class Notes:
    """Limits, types and origins of the values of one holder, by name."""

    limits: dict[str, Choice | Range] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    def admit(self, name: str, value: Any, origin: Origin) -> Any:
        """Return `value` as kept under `name`; a limit, such as `choice(...)`, becomes its default.

        Raises InputError when a limit forbids the value.
        """
        limit = self.limits.get(name)
        if isinstance(value, Choice | Range):
            self.limits[name] = value
            value = value.default
        elif limit is not None and not limit.allows(value):
            what = f"`{name}` must be {limit.requirement()}, not {value!r}."
            raise InputError(what, where=str(origin), fix=limit.near(value))
        self.origins[name] = origin
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return ParamDict(value, origin)
        return copy.deepcopy(value) if isinstance(value, ParamDict) else value

    def forget(self, name: str) -> None:
        self.limits.pop(name, None)
        self.origins.pop(name, None)


class Holder(Protocol):
    """Interface that parameters and nested parameters share."""

    @property
    def _notes(self) -> Notes: ...

    def _names(self) -> list[str]:
        """Return the names that may be set without declaring a new one."""

    def _at(self, name: str) -> Any:
        """Return the value of `name`. Raises KeyError when it has none."""

    def _kind(self, name: str) -> Any:
        """Return the type that the value of `name` keeps."""

    def _store(self, name: str, value: Any, origin: Origin) -> None: ...

    def _drop(self, name: str) -> None: ...


class ParamDict(dict[str, Any]):
    """Dictionary of parameters: `p.optim.lr` is `p.optim["lr"]`. Limits on its values hold."""

    __slots__ = ("_notes",)
    _notes: Notes

    def __init__(
        self, values: Mapping[str, Any] | None = None, origin: Origin | None = None
    ) -> None:
        super().__init__()
        object.__setattr__(self, "_notes", Notes())
        origin = origin or caller()
        for name, value in (values or {}).items():
            self._store(name, value, origin)

    def __setitem__(self, name: str, value: Any) -> None:
        self._store(name, value, caller())

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name.startswith("_"):
            raise InputError(
                f"`{name}` cannot be set as an attribute of a group.", fix=f'Write ["{name}"] = ...'
            )
        self._store(name, value, caller())

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(unknown_parameter(name, self), name=name, obj=self)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._notes.forget(name)

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(unknown_parameter(name, self), name=name, obj=self)
        del self[name]

    def update(self, /, *others: Any, **more: Any) -> None:
        origin = caller()
        for name, value in dict(*others, **more).items():
            self._store(name, value, origin)

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self._store(name, default, caller())
        return self[name]

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc] # as dict's overloads
        self.update(other)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ParamDict:
        return _restore(
            {name: copy.deepcopy(value, memo) for name, value in self.items()}, self._notes
        )

    def __reduce__(self) -> Any:
        return _restore, (dict(self), self._notes)

    def _names(self) -> list[str]:
        return list(self)

    def _at(self, name: str) -> Any:
        return self[name]

    def _kind(self, name: str) -> Any:
        return type_of(self[name])

    def _store(self, name: str, value: Any, origin: Origin) -> None:
        if not isinstance(name, str):
            raise InputError(
                f"The name of a parameter must be a string, not {name!r}.", where=str(origin)
            )
        if not isinstance(value, ParamDict) or value is not self.get(name):
            super().__setitem__(name, self._notes.admit(name, value, origin))

    def _drop(self, name: str) -> None:
        del self[name]


def is_holder(value: Any) -> bool:
    return hasattr(type(value), "_store")


def child(value: Any, part: str | int) -> Any:
    """Return the item `part` of a holder, list or tuple. Raises KeyError when there is none."""
    if is_holder(value):
        if isinstance(part, str) and part in value._names():
            return value._at(part)
    elif isinstance(value, Mapping):
        return value[part]
    elif isinstance(value, list | tuple):
        index = int(part) if isinstance(part, str) and part.isascii() and part.isdigit() else part
        if isinstance(index, int) and index < len(value):
            return value[index]
    raise KeyError(part)


def store_at(root: Any, path: KeyPath, value: Any, origin: Origin) -> None:
    """Set the value at `path`; groups on the way are made. InputError where nothing can be set."""
    holder = root
    for depth, part in enumerate(path[:-1]):
        try:
            holder = child(holder, part)
        except KeyError:
            _put(holder, part, ParamDict(None, origin), origin, path[:depth])
            holder = child(holder, part)
    _put(holder, path[-1], value, origin, path[:-1])


def _put(holder: Any, part: str | int, value: Any, origin: Origin, above: KeyPath) -> None:
    if is_holder(holder) and isinstance(part, str):
        holder._store(part, value, origin)
    elif isinstance(holder, list | dict):
        try:
            holder[int(part) if isinstance(holder, list) else part] = value  # type: ignore[index]
        except (IndexError, ValueError):
            raise InputError(
                f"`{dotted(above)}` has no item {part!r}.", where=str(origin)
            ) from None
    else:
        what = f"`{dotted(above)}` is one value, so it has no `{part}`."
        raise InputError(what, where=str(origin), fix=f"Set `{dotted(above)}` as a whole.")


def _restore(values: dict[str, Any], notes: Notes) -> ParamDict:
    group = ParamDict()
    dict.update(group, values)
    group._notes.limits.update(notes.limits)
    group._notes.origins.update(notes.origins)
    return group


def caller() -> Origin:
    """Return the origin of the user's line that is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return Origin(source=frame.f_code.co_filename, line=frame.f_lineno)


def unknown_parameter(name: str, known: Iterable[str]) -> str:
    """Return the message that `name` is unknown, with the parameter that was probably meant."""
    near = did_you_mean(name, known)
    return f"there is no parameter `{name}`" + (f", {near}" if near else "")
