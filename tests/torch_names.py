"""Public names of the installed torch, and those that no table of the allow-list has decided.

`.venv/bin/python tests/torch_names.py` prints the latter: each belongs into ALLOWED, ON_TRUST or NEVER of
`assay.config.torch_targets`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from assay.config.allow_list import is_reviewed
from assay.config.torch_targets import ALLOWED, PLACES, REVIEWED

SPECIAL = frozenset(
    {
        *(
            "open",
            "exec",
            "eval",
            "compile",
            "__import__",
            "import_module",
            "getattr",
            "setattr",
            "globals",
            "vars",
        ),
        *(
            "load",
            "loads",
            "find_class",
            "system",
            "popen",
            "Popen",
            "run",
            "check_call",
            "urlopen",
            "connect",
        ),
    }
)
"""Calls that may do more than compute. `getattr` and `setattr` of a constant name are none."""


def public_names() -> dict[int, list[str]]:
    """Return by identity the public names of each class and function torch defines below PLACES."""
    found: dict[int, list[str]] = {}
    for module in _public_modules():
        for name, thing in vars(module).items():
            if not name.startswith("_") and _is_of_torch(thing):
                found.setdefault(id(thing), []).append(f"{module.__name__}.{name}")
    return {
        key: sorted(names, key=lambda name: (name.count("."), name)) for key, names in found.items()
    }


def new_names() -> list[str]:
    """Return the shortest name of everything that no table decides about."""
    return sorted(names[0] for names in public_names().values() if not any(map(is_reviewed, names)))


def missing_names() -> list[str]:
    """Return the allowed names that the installed torch does not have."""
    return [
        f"{module}.{name}"
        for module, names in ALLOWED.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]


def special_calls() -> set[str]:
    """Return the non-computing calls of the allowed classes and functions, as `Name: call`."""
    things = (
        getattr(importlib.import_module(module), name, None)
        for module, names in ALLOWED.items()
        for name in names
    )
    return {
        f"{one.__name__}: {said}"
        for thing in things
        for one in _sources(thing)
        for said in _special(one)
    }


def _sources(thing: Any) -> Iterable[Any]:
    """Return a function, or a class with its bases below PLACES, without `nn.Module`.

    `nn.Module` is part of every training.
    """
    if not isinstance(thing, type):
        return [thing] if isinstance(thing, types.FunctionType) else []
    bases = (torch.nn.Module, torch.optim.Optimizer)
    return [one for one in thing.__mro__ if one not in bases and _is_below(one.__module__)]


def _special(thing: Any) -> Iterator[str]:
    for node in ast.walk(_syntax(thing)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        is_constant = name in ("getattr", "setattr") and isinstance(node.args[1], ast.Constant)
        if name in SPECIAL and not is_constant:
            yield ast.unparse(node)


def _syntax(thing: Any) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except OSError:  # a class whose __module__ was set to a package: look where its __init__ is
        tree = ast.parse(inspect.getsource(inspect.getmodule(thing.__init__.__code__) or thing))
        return next(
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == thing.__name__
        )


def _public_modules() -> Iterator[types.ModuleType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # modules that torch deprecates warn when they are imported
        for place in PLACES:
            package = importlib.import_module(place)
            yield package
            for found in pkgutil.walk_packages(
                package.__path__, f"{place}.", onerror=lambda _: None
            ):
                if not any(part.startswith("_") for part in found.name.split(".")):
                    yield importlib.import_module(found.name)


def _is_of_torch(thing: Any) -> bool:
    if isinstance(thing, types.BuiltinFunctionType):
        return str(thing.__module__).startswith("torch")
    return isinstance(thing, type | types.FunctionType) and _is_below(thing.__module__)


def _is_below(module: str) -> bool:
    return f"{module}.".startswith(tuple(f"{place}." for place in PLACES))


def main() -> int:
    """Print what is to be decided about; 1 if there is anything."""
    new = new_names()
    if torch.__version__.partition("+")[0] not in REVIEWED:
        print(f"torch {torch.__version__} is not in REVIEWED")
    for name in new:
        print(f"new      {name}")
    for name in missing_names():
        print(f"missing  {name}")
    print(f"torch {torch.__version__}: {len(new)} new of {len(public_names())} public names")
    return int(bool(new))


if __name__ == "__main__":
    raise SystemExit(main())
