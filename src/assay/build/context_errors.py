"""Errors of a context: what is missing, not there yet, or there twice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from assay.build.context_entries import Entry, Promise, label_of, type_name
from assay.build.parameters import Parameter
from assay.core.errors import InputError


class ContextError(InputError):
    """A dependency is missing, ambiguous or cyclic."""


def missing(key: Any, fix: str) -> ContextError:
    """Return the error of a name or type that finds nothing."""
    if isinstance(key, str):
        return ContextError(f"Nothing is set as `{key}`.", fix=fix)
    return ContextError(f"Nothing here is a `{type_name(key)}`.", fix=fix)


def not_there(name: str, promise: Promise, asker: str = "") -> ContextError:
    """Return the error of a promised entry that is asked for before it is made, or never made."""
    if promise.never:
        return ContextError(f"There is no `{name}` here: {promise.never}.")
    sources = [*promise.names, *(".".join(map(str, path)) for path in promise.paths)]
    made = "it is made later"
    if sources:
        made = f"it is made from {' and '.join(f'`{each}`' for each in sources)}"
    return ContextError(
        f"`{name}`{asker} is not there yet: {made}.", fix="ask for it later, in a handler"
    )


def nobody_provides(
    parameter: Parameter, function: Callable[..., Any], chain: Sequence[Entry], fix: str
) -> ContextError:
    """Return the error of a required parameter that no entry fills."""
    asked = "".join(f", asked for by {label_of(entry)}" for entry in reversed(chain[:-1]))
    has_hint = parameter.hint is not inspect.Parameter.empty
    hint = f" ({type_name(parameter.hint)})" if has_hint else ""
    return ContextError(
        f"Nothing provides `{parameter.name}`{hint}, needed by `{callable_name(function)}`{asked}.",
        where=place_of(function),
        fix=fix,
    )


def ambiguous(key: Any, found: Sequence[Entry], purpose: str) -> ContextError:
    """Return the error of a type that several entries have."""
    names = " and ".join(str(entry) for entry in found)
    return ContextError(
        f"More than one `{type_name(key)}`{purpose}: {names}.",
        fix="ask by name, or declare one with `set(name, value, type=...)`",
    )


def explain_provided_twice(
    label: str, before: Callable[..., Any], provider: Callable[..., Any]
) -> ContextError:
    """Return the error of two providers under one name."""
    places = filter(None, (place_of(before), place_of(provider)))
    return ContextError(
        f"`{label}` is provided twice: by `{callable_name(before)}` and"
        f" `{callable_name(provider)}`.",
        where=" and ".join(places),
        fix="give one of them another name: @provides(name=...)",
    )


def too_general(key: Any) -> ContextError:
    """Return the error of a type, such as `int`, that could be anything."""
    return ContextError(
        f"`{type_name(key)}` says too little to find anything by it.",
        fix="ask by name, or declare a NewType alias and ask for that",
    )


def cyclic(loop: Sequence[Entry], provider: Callable[..., Any]) -> ContextError:
    """Return the error of entries that need each other to be made."""
    return ContextError(
        f"These need each other: {' -> '.join(label_of(link) for link in loop)}.",
        where=place_of(provider),
        fix="one of them must be made without the other",
    )


def callable_name(function: Callable[..., Any]) -> str:
    """Return the qualified name of a callable, without its bound arguments."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", function))


def place_of(function: Callable[..., Any]) -> str:
    """Return file and line of a callable; "" if it has no source."""
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        return f"{file}:{inspect.getsourcelines(inspect.unwrap(function))[1]}"
    except (TypeError, OSError):  # written in C, or in a place without source
        return ""


def is_redefined(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Return True for the same function defined again, as when a notebook cell is rerun."""
    names = [(getattr(one, "__module__", None), callable_name(one)) for one in (old, new)]
    return old == new or (names[0] == names[1] and not inspect.ismethod(new))
