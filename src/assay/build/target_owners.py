"""Owners of classes and functions: assay, the user, torch, or a package the project trusts."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from assay.config.allow_list import (
    LISTED,
    can_trust,
)
from assay.config.isolation import is_user_module, roots_of
from assay.core.code_places import lies_under

Owner = Literal["assay", "user", "torch", "trusted"]


def owner_of(
    thing: Any, *, user_dirs: Sequence[Path], trusted: Collection[str] = ()
) -> Owner | None:
    """Return the owner of a class or function; None if a config may call nothing of it."""
    return owner_in(thing, roots_of(user_dirs), frozenset(trusted))


def is_trusted(module: str, trusted: frozenset[str], *, partly: bool = False) -> bool:
    """Return True if `module` lies in a trusted package; `partly`: or such a package lies in it."""
    if not can_trust(module.partition(".")[0]):
        return False
    return any(
        f"{module}.".startswith(f"{name}.") or (partly and f"{name}.".startswith(f"{module}."))
        for name in trusted
    )


def owner_in(thing: Any, roots: tuple[str, ...], trusted: frozenset[str]) -> Owner | None:
    if isinstance(thing, functools.partial):
        return owner_in(thing.func, roots, trusted)
    if isinstance(thing, types.MethodType):
        return owner_in(thing.__func__, roots, trusted)
    module = module_of(thing)
    if _is_users(thing, module, roots):
        return "user"
    listed = listed_name(thing)
    if listed:
        return "assay" if listed.startswith("assay.") else "torch"
    if module.partition(".")[0] == "torch":
        return "torch" if _is_trusted_of_torch(thing, trusted) else None
    if is_trusted(module, trusted) and _is_defined(thing):
        return "trusted"
    return None


def _is_users(thing: Any, module: str, roots: tuple[str, ...]) -> bool:
    if isinstance(thing, type):
        loaded = sys.modules.get(module)
        return loaded is not None and is_user_module(loaded, roots)
    inner = inspect.unwrap(thing)
    codes = [
        function.__code__ for function in (thing, inner) if isinstance(function, types.FunctionType)
    ]
    if codes:
        return any(lies_under(code.co_filename, roots) for code in codes)
    is_instance = not isinstance(thing, types.BuiltinFunctionType)
    return is_instance and _is_users(type(thing), type(thing).__module__, roots)


def listed_name(thing: Any) -> str:
    """Return the name under which the allow-list has this very object, "" if it has not."""
    top = module_of(thing).partition(".")[0]
    if top not in ("assay", "torch"):
        return ""
    for name in LISTED:
        module = sys.modules.get(name) if name.startswith(f"{top}.") else None
        found = _objects(module).get(id(thing)) if module is not None else None
        if found is not None and found[0] is thing:
            return found[1]
    return ""


@functools.lru_cache(maxsize=len(LISTED))
def _objects(module: types.ModuleType) -> dict[int, tuple[Any, str]]:
    """Return the objects that the allow-list names in a module, with their names, by identity."""
    # Not by __module__ and __qualname__: those are attributes, which anything may set.
    names = {name: vars(module).get(name) for name in LISTED[module.__name__]}
    return {
        id(thing): (thing, f"{module.__name__}.{name}")
        for name, thing in names.items()
        if thing is not None
    }


def _is_trusted_of_torch(thing: Any, trusted: Collection[str]) -> bool:
    """Return True if the project trusts this very class or function of torch by its full name."""
    for name in trusted:
        module, _, last = name.rpartition(".")
        home = sys.modules.get(module) if can_trust(name) else None
        if home is not None and vars(home).get(last) is thing:
            return _is_defined(thing)
    return False


def _is_defined(thing: Any) -> bool:
    """Return True for a real class or function, not an object that only looks like one."""
    return isinstance(thing, type | types.FunctionType | types.BuiltinFunctionType)


def module_of(thing: Any) -> str:
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else ""


def defined_name(thing: Any) -> str:
    while isinstance(thing, functools.partial):
        thing = thing.func
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"`{module_of(thing) or 'builtins'}.{name}`"
