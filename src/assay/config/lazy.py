"""Calls written down instead of made: `L(Net)(width=32)` in a config that is a Python file.

>>> model = L("model.Net")(width=32)
>>> model.width = 64
>>> model
L('model.Net')(width=64)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import FrameType
from typing import Any

from assay.core.errors import did_you_mean

_HOUSES = ("torch", "assay")
"""Packages whose classes are named by their public module, not by the file that defines them."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Line of a Python file that wrote a value."""

    file: str
    line: int


class Section(dict[str, Any]):
    """Table of a config in Python: a dictionary with attribute access and the origin of its keys.

    >>> train = Section(epochs=1)
    >>> train.epochs += 1
    >>> train.update(dict(clip_norm=1.0))
    >>> train
    Section(epochs=2, clip_norm=1.0)
    """

    _spot: Spot | None
    _spots: dict[str, Spot | None]

    def __init__(
        self, given: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any
    ) -> None:
        super().__init__(given, **more)
        self.__dict__["_spot"] = _caller()
        self.__dict__["_spots"] = {}

    @classmethod
    def without_place(cls) -> Section:
        """Return an empty section that no line of a program is known to have made."""
        return _restore(cls, {})

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        names = [str(key) for key in self]  # {1: 2} can become a section too
        near = did_you_mean(name, names) or f"there is: {', '.join(names) or '-'}"
        raise AttributeError(f"no `{name}` here; {near}")

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in self.__dict__:
            raise AttributeError(
                f"`{name}` is a method of every section; write [{name!r}] for the key"
            )
        self._put(name, value, _caller())

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"no `{name}` here; {did_you_mean(name, self)}")
        del self[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._put(name, value, _caller())

    def update(self, given: Any = (), /, **more: Any) -> None:
        spot = _caller()
        for name, value in dict(given, **more).items():
            self._put(name, value, spot)

    def setdefault(self, name: str, value: Any = None) -> Any:
        if name not in self:
            self._put(name, value, _caller())
        return self[name]

    def __ior__(self, given: Any) -> Section:  # type: ignore[override,misc]
        spot = _caller()
        for name, value in dict(given).items():
            self._put(name, value, spot)
        return self

    def copy(self) -> Section:
        return self.__copy__()

    def __copy__(self) -> Section:
        return self._like(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Section:
        made = self._like({})
        memo[id(self)] = made
        for name, value in self.items():
            dict.__setitem__(made, name, deepcopy(value, memo))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), dict(self))

    def __repr__(self) -> str:
        return f"Section({_arguments(self)})"

    def _like(self, items: Mapping[str, Any]) -> Section:
        made = _restore(type(self), items)
        made.__dict__.update(_spot=self._spot, _spots=dict(self._spots))
        return made

    def _put(self, name: str, value: Any, spot: Spot | None) -> None:
        dict.__setitem__(self, name, value)
        self.__dict__["_spots"][name] = spot


class Call(Section):
    """Deferred call: its target under `type`, arguments by name, positional ones under `args`."""

    def __repr__(self) -> str:
        arguments = {name: value for name, value in self.items() if name not in ("type", "args")}
        positional = [_show(value) for value in self.get("args", ())]
        named = [_arguments(arguments)] if arguments else []
        return f"L({self['type']!r})({', '.join([*positional, *named])})"


class LazyCall:
    """Factory of calls: `L(Net)(width=32)` is a `Call` of Net; `L("model.Net")` imports nothing."""

    def __init__(self, target: Any) -> None:
        if not (isinstance(target, str) or callable(target)):
            raise TypeError(f"a call needs a class, a function or the text of one, not {target!r}")
        self.target = target if isinstance(target, str) else target_of(target)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Call:
        for name in ("type", "args"):
            if name in kwargs:
                raise TypeError(
                    f"`{name}` cannot be written as an argument:"
                    " in a config it has a meaning of its own"
                )
        made = Call({"type": self.target, **({"args": list(args)} if args else {}), **kwargs})
        made.__dict__["_spot"] = _caller()
        return made


L = LazyCall


def target_of(thing: Any) -> str:
    """Return the text that names a class or function in a config; its repr if it has no name."""
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return repr(thing)
    if not isinstance(thing, type) and isinstance(getattr(thing, "__self__", None), type):
        # a classmethod, by the class it was taken from
        name = f"{thing.__self__.__qualname__}.{thing.__name__}"
        module = thing.__self__.__module__
        thing = thing.__self__
    return f"{_public(module, name.partition('.')[0])}.{name}"


def _public(module: str, name: str) -> str:
    """Return the shortest package that offers `name`: torch.nn for torch.nn.modules.linear."""
    parts = module.split(".")
    home = sys.modules.get(module)
    thing = getattr(home, name, None)
    if parts[0] not in _HOUSES or thing is None:
        return module
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if getattr(sys.modules.get(package), name, None) is thing:
            return package
    return module


def _restore(kind: type[Section], items: Mapping[str, Any]) -> Section:
    made = kind.__new__(kind)
    made.__dict__.update(_spot=None, _spots={})
    for name, value in items.items():
        dict.__setitem__(made, name, value)
    return made


def _arguments(given: Mapping[str, Any]) -> str:
    if all(str(name).isidentifier() for name in given):
        return ", ".join(f"{name}={_show(value)}" for name, value in given.items())
    return repr(dict(given))


def _show(value: Any) -> str:
    return target_of(value) if callable(value) else repr(value)


def calling_frame() -> FrameType | None:
    """Return the frame of the caller of this module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _caller() -> Spot | None:
    frame = calling_frame()
    return Spot(frame.f_code.co_filename, frame.f_lineno or 0) if frame is not None else None
