"""Destination of a function's `**kwargs`, read from its source: mostly one other call.

Only plain code is followed: one call takes them, and otherwise they are only read by constant
names.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Call that takes a function's `**kwargs`.

    `positional` arguments and `keywords` are given there already. `with_args`: the function's
    `*args` go there too. `popped` are the names removed before, each with True if it is required;
    `put` those added.
    """

    to: ast.expr
    positional: int
    keywords: frozenset[str]
    with_args: bool
    popped: Mapping[str, bool] = field(default_factory=dict)
    put: frozenset[str] = frozenset()


def handover(function: types.FunctionType) -> Handover | None:
    """Return the call that takes the `**kwargs` of `function`; None if its source does not tell."""
    code = function.__code__
    try:
        # `inspect.getsource` would read the function that this one wraps; and given the code, it
        # resolves the file of every loaded module to find the one of this code.
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, function.__globals__)
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        tree = ast.parse(textwrap.dedent("".join(block)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    made = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(made, ast.FunctionDef) or made.args.kwarg is None:
        return None
    args = made.args.vararg.arg if made.args.vararg else ""
    return _Reading(made.args.kwarg.arg, args).run(made)


def is_super_init(to: ast.expr) -> bool:
    """Return True for `super().__init__` or `super(Net, self).__init__`."""
    match to:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
            return True
        case _:
            return False


def callee(to: ast.expr, function: types.FunctionType, first: Any = None) -> Any:
    """Return the object that `to` names in `function`, without running it; None if unknown.

    `first` is the value of the first parameter where that is known: the class of a classmethod.
    """
    match to:
        case ast.Name(id=name):
            code = function.__code__
            if first is not None and code.co_varnames[:1] == (name,):
                return first
            if name in code.co_varnames:
                return None
            free = inspect.getclosurevars(function)
            return free.nonlocals.get(name, function.__globals__.get(name, free.builtins.get(name)))
        case ast.Attribute(value=inner, attr=name):
            outer = callee(inner, function, first)
            if isinstance(outer, types.ModuleType):
                return vars(outer).get(name)
            static = inspect.getattr_static(outer, name, None) if isinstance(outer, type) else None
            is_safe = isinstance(static, types.FunctionType | classmethod | staticmethod | type)
            return getattr(outer, name) if is_safe else None
        case _:
            return None


class _Reading:
    """Search of one function body for the uses of its `**kwargs`."""

    def __init__(self, kwargs: str, args: str) -> None:
        self.kwargs = kwargs
        self.args = args
        self.calls: list[ast.Call] = []
        self.popped: list[tuple[int, str, bool]] = []
        self.put: list[tuple[int, str]] = []
        self.is_plain = True
        self.num_args_uses = 0

    def run(self, made: ast.FunctionDef) -> Handover | None:
        for statement in made.body:
            self.look(statement, is_certain=True)
        if not self.is_plain or len(self.calls) != 1:
            return None
        call = self.calls[0]
        starred = [part for part in call.args if isinstance(part, ast.Starred)]
        with_args = bool(self.args) and len(starred) == 1 and self._is(starred[0].value, self.args)
        if starred and (not with_args or call.args[-1] is not starred[0]):
            return None
        unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
        if not all(self._is(value) for value in unpacked):
            return None
        before = call.lineno
        return Handover(
            to=call.func,
            positional=len(call.args) - len(starred),
            keywords=frozenset(keyword.arg for keyword in call.keywords if keyword.arg is not None),
            with_args=with_args and self.num_args_uses == 1,
            popped={name: required for line, name, required in self.popped if line <= before},
            put=frozenset(name for line, name in self.put if line <= before),
        )

    def look(self, node: ast.AST, *, is_certain: bool) -> None:
        """Classify every use of the name; `is_certain`: reached whenever the function is called."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            # Called some other time, or never.
            self.is_plain &= not any(self._is(inner) for inner in ast.walk(node))
            return
        if self._understood(node, is_certain):
            return
        if isinstance(node, ast.Name) and node.id == self.kwargs:
            self.is_plain = False
        if isinstance(node, ast.Name) and node.id == self.args:
            self.num_args_uses += 1
        is_branch = isinstance(
            node, ast.If | ast.For | ast.While | ast.Try | ast.IfExp | ast.BoolOp | ast.Match
        )
        for child in ast.iter_child_nodes(node):
            self.look(child, is_certain=is_certain and not is_branch)

    def _understood(self, node: ast.AST, is_certain: bool) -> bool:
        """Return True if `node` is a use after which the destination is still plain."""
        match node:
            case ast.Call():
                return self._understood_call(node, is_certain)
            case ast.Assign(
                targets=[ast.Subscript(value=value, slice=ast.Constant(value=str(name)))],
                value=given,
            ):
                if not self._is(value):
                    return False
                self.put.append((node.lineno, name))
                self.look(given, is_certain=is_certain)
                return True
            case ast.Subscript(value=value, slice=ast.Constant(), ctx=ast.Load()):
                return self._is(value)
            case ast.Compare(
                left=ast.Constant(), ops=[ast.In() | ast.NotIn()], comparators=[value]
            ):
                return self._is(value)
            case _:
                return False

    def _understood_call(self, node: ast.Call, is_certain: bool) -> bool:
        """Return True for `f(**kwargs)`, and for `pop`, `setdefault` and `get` with plain names."""
        match node:
            case ast.Call(keywords=keywords) if any(map(self._is_unpacked, keywords)):
                self.calls.append(node)
                others = [each.value for each in keywords if not self._is_unpacked(each)]
                for part in (node.func, *node.args, *others):
                    self.look(part, is_certain=is_certain)
                return True
            case ast.Call(
                func=ast.Attribute(value=value, attr=method), args=[ast.Constant() as key, *rest]
            ) if self._is(value):
                name = key.value
            case _:
                return False
        if method == "pop" and isinstance(name, str):
            self.popped.append((node.lineno, name, is_certain and not rest))
        elif method == "setdefault" and isinstance(name, str):
            self.put.append((node.lineno, name))
        elif method != "get":
            return False
        self._look_all(rest, is_certain)
        return True

    def _is_unpacked(self, keyword: ast.keyword) -> bool:
        """Return whether a keyword of a call is `**kwargs` of the destination."""
        return keyword.arg is None and self._is(keyword.value)

    def _look_all(self, nodes: list[ast.expr], is_certain: bool) -> None:
        for node in nodes:
            self.look(node, is_certain=is_certain)

    def _is(self, node: ast.AST, name: str = "") -> bool:
        return isinstance(node, ast.Name) and node.id == (name or self.kwargs)


def inits_after(cls: type, defining: type) -> Iterator[tuple[type, Any]]:
    """Return the `__init__` methods after `defining` in the order of `cls`, the next first."""
    order = cls.__mro__
    for base in order[order.index(defining) + 1 :]:
        if "__init__" in vars(base):
            yield base, vars(base)["__init__"]
