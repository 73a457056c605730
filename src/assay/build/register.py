"""Marks for the user's classes and functions. They change nothing: everything can still be called by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

_INJECT = "__assay_inject__"
_PROVIDES = "__assay_provides__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """What a provider is found by; None: its return annotation and its own name."""

    type: Any = None
    name: str | None = None


def inject(target: F) -> F:
    """Parameters with a default are injected too, and a marked class is built when somebody asks for it.

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
def provides(*, type: Any = None, name: str | None = None) -> Callable[[F], F]: ...
def provides(target: F | None = None, *, type: Any = None, name: str | None = None) -> F | Callable[[F], F]:
    """What this function returns is there for others to ask for; it is called once, when the first one does."""

    def mark(function: F) -> F:
        setattr(function, _PROVIDES, Provision(type=type, name=name))
        return function

    return mark if target is None else mark(target)


def provision_of(target: object) -> Provision | None:
    """The mark of `provides`, or None."""
    mark = inspect.getattr_static(target, _PROVIDES, None) if not inspect.ismethod(target) else None
    if inspect.ismethod(target):
        mark = getattr(target.__func__, _PROVIDES, None)
    return mark if isinstance(mark, Provision) else None
