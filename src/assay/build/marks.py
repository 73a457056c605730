"""Decorators for dependency injection. They change nothing: every function can still be called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from assay.config.lazy import Section

F = TypeVar("F", bound=Callable[..., Any])

_INJECT = "__assay_inject__"
_PROVIDES = "__assay_provides__"
_CONFIGURABLE = "__assay_configurable__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Key of a provider; None means its return annotation and its own name."""

    type: Any = None
    name: str | None = None


def inject(target: F) -> F:
    """Inject parameters that have a default too, and build a marked class when it is asked for.

    For a class, its `__init__`, or a function.
    """
    setattr(target, _INJECT, True)
    return target


def is_injected(target: Callable[..., Any]) -> bool:
    """Return True if `inject` marks this function, this class (not a parent) or its init."""
    if not inspect.isclass(target):
        return getattr(target, _INJECT, False) is True
    init = vars(target).get("__init__")
    return vars(target).get(_INJECT) is True or getattr(init, _INJECT, False) is True


@overload
def provides(target: F) -> F: ...
@overload
def provides(*, type: Any = None, name: str | None = None) -> Callable[[F], F]: ...
def provides(
    target: F | None = None, *, type: Any = None, name: str | None = None
) -> F | Callable[[F], F]:
    """Register a provider: its return value, made once on first use, can be injected."""

    def mark(function: F) -> F:
        setattr(function, _PROVIDES, Provision(type=type, name=name))
        return function

    return mark if target is None else mark(target)


def provision_of(target: object) -> Provision | None:
    """Return the mark of `provides`, or None."""
    mark = inspect.getattr_static(target, _PROVIDES, None) if not inspect.ismethod(target) else None
    if inspect.ismethod(target):
        mark = getattr(target.__func__, _PROVIDES, None)
    return mark if isinstance(mark, Provision) else None


def configurable(init: F) -> F:
    """Let an `__init__` also take one mapping in place of keyword arguments; keywords win over it.

    A class method `from_config(cfg)` may translate the mapping, whose keys are attributes too, to
    arguments; without one its keys are the arguments.
    """

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        config: Any
        config, rest = (args[0], args[1:]) if args else (kwargs.get("cfg"), ())
        if not _is_mapping(config) or rest:
            init(self, *args, **kwargs)
            return
        if not args:
            kwargs.pop("cfg")
        explain = getattr(type(self), "from_config", dict)
        init(self, **{**explain(_with_attributes(config)), **kwargs})

    setattr(wrapper, _CONFIGURABLE, True)
    return wrapper  # type: ignore[return-value]


def is_configurable(target: Callable[..., Any]) -> bool:
    """Return True if a class takes one mapping in place of its keyword arguments."""
    return getattr(getattr(target, "__init__", None), _CONFIGURABLE, False) is True


def _with_attributes(value: Any) -> Any:
    """Return a dictionary, and those inside, as sections; anything else as it is."""
    if type(value) is not dict:
        return value
    return Section({key: _with_attributes(item) for key, item in value.items()})


def _is_mapping(value: Any) -> bool:
    """Return True for a mapping by behaviour: configs of other packages are no Mapping."""
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__"))


def is_provider(module: object, name: str) -> bool:
    """Return True if the attribute `name` of a module is marked with `provides`."""
    return (
        not name.startswith("__") and provision_of(inspect.getattr_static(module, name)) is not None
    )
