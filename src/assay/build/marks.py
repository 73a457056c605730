"""Marks for the user's classes and functions. They change nothing: everything can still be called
by hand."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

_INJECT = "__assay_inject__"
_PROVIDES = "__assay_provides__"
_CONFIGURABLE = "__assay_configurable__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """What a provider is found by; None: its return annotation and its own name. `singleton`: it is
    called once."""

    type: Any = None
    name: str | None = None
    singleton: bool = True


def inject(target: F) -> F:
    """Parameters with a default are injected too, and a marked class is built when somebody asks
    for it.

    Stands on a class, on its `__init__`, or on a function.
    """
    setattr(target, _INJECT, True)
    return target


def is_injected(target: Callable[..., Any]) -> bool:
    """Whether `inject` stands on this very class (not on a parent), its `__init__`, or function."""
    if not inspect.isclass(target):
        return getattr(target, _INJECT, False) is True
    init = vars(target).get("__init__")
    return vars(target).get(_INJECT) is True or getattr(init, _INJECT, False) is True


@overload
def provides(target: F) -> F: ...
@overload
def provides(
    *, type: Any = None, name: str | None = None, singleton: bool = True
) -> Callable[[F], F]: ...
def provides(
    target: F | None = None, *, type: Any = None, name: str | None = None, singleton: bool = True
) -> F | Callable[[F], F]:
    """What this function returns is there for others to ask for.

    It is called once, when the first one asks; with `singleton=False` each one gets an object of
    its own.
    """

    def mark(function: F) -> F:
        setattr(function, _PROVIDES, Provision(type=type, name=name, singleton=singleton))
        return function

    return mark if target is None else mark(target)


def provision_of(target: object) -> Provision | None:
    """The mark of `provides`, or None."""
    mark = inspect.getattr_static(target, _PROVIDES, None) if not inspect.ismethod(target) else None
    if inspect.ismethod(target):
        mark = getattr(target.__func__, _PROVIDES, None)
    return mark if isinstance(mark, Provision) else None


def configurable(init: F) -> F:
    """Stands on `__init__`: it also takes one mapping in place of keyword arguments; those given
    beside it win.

    A class method `from_config(cfg)` may say which arguments a mapping means; without one its keys
    are the arguments.
    """

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        config: Any
        config, rest = (args[0], args[1:]) if args else (kwargs.get("cfg"), ())
        if not _is_mapping(config) or rest:
            init(self, *args, **kwargs)
            return
        if not args:
            kwargs.pop("cfg")
        explain = getattr(type(self), "from_config", dict)
        init(self, **{**explain(config), **kwargs})

    setattr(wrapped, _CONFIGURABLE, True)
    return wrapped  # type: ignore[return-value]


def is_configurable(target: Callable[..., Any]) -> bool:
    """Whether a class takes one mapping in place of its keyword arguments."""
    return getattr(getattr(target, "__init__", None), _CONFIGURABLE, False) is True


def _is_mapping(value: Any) -> bool:
    """A dictionary, or what behaves like one: configs of other packages need not inherit from
    Mapping."""
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__"))
