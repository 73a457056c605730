"""Destination of the `**kwargs` of an `__init__`: the one `super().__init__` that takes them."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Call of `super().__init__` that takes the `**kwargs` of an `__init__`.

    `positional` arguments and `keywords` are given there already. `with_args`: the `*args` go
    there, too.
    """

    positional: int
    keywords: frozenset[str]
    with_args: bool


def handover(init: types.FunctionType) -> Handover | None:
    """Return the `super().__init__(**kwargs)` in an `__init__`.

    None where the `**kwargs` have another use, too: what they hold is then unknown.
    """
    code = init.__code__
    if init.__name__ != "__init__":
        return None
    try:
        # `inspect.getsource` would read the function that this one wraps; and given the code, it
        # resolves the file of every loaded module to find the one of this code.
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, init.__globals__)
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        tree = ast.parse(textwrap.dedent("".join(block)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    made = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(made, ast.FunctionDef) or made.args.kwarg is None:
        return None
    kwargs, args = made.args.kwarg.arg, made.args.vararg.arg if made.args.vararg else ""
    uses = [node.id for node in ast.walk(made) if isinstance(node, ast.Name)]
    calls = [node for node in ast.walk(made) if isinstance(node, ast.Call) and _is_super_init(node)]
    if uses.count(kwargs) != 1 or len(calls) != 1:
        return None
    (call,) = calls
    unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
    starred = [part.value for part in call.args if isinstance(part, ast.Starred)]
    if len(unpacked) != 1 or not _is(unpacked[0], kwargs) or len(starred) > 1:
        return None
    with_args = bool(starred) and _is(starred[0], args) and uses.count(args) == 1
    if starred and not (with_args and isinstance(call.args[-1], ast.Starred)):
        return None
    return Handover(
        positional=len(call.args) - len(starred),
        keywords=frozenset(keyword.arg for keyword in call.keywords if keyword.arg is not None),
        with_args=with_args,
    )


def _is_super_init(call: ast.Call) -> bool:
    """Return True for a call of `super().__init__` or `super(Net, self).__init__`."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
            return True
        case _:
            return False


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def inits_after(cls: type, defining: type) -> Iterator[tuple[type, Any]]:
    """Return the `__init__` methods after `defining` in the order of `cls`, the next first."""
    order = cls.__mro__
    for base in order[order.index(defining) + 1 :]:
        if "__init__" in vars(base):
            yield base, vars(base)["__init__"]
