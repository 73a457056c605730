"""Front end for `Params` and dataclasses: a tree in which each value knows the line that set it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import os
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from enum import Enum
from pathlib import PurePath
from typing import Any

from assay.config.tree import List, Node, Table, from_plain
from assay.core.diagnostics import Origin
from assay.core.errors import InputError

PYTHON = "<python>"


def tree_of(settings: object) -> Table:
    """Return the tree of a Params or dataclass, or of such a class without required parameters."""
    if isinstance(settings, type):
        kind = settings
        try:
            settings = kind()
        except TypeError as error:
            raise InputError(
                f"A config cannot be made of {kind.__name__} alone: {error}."
            ) from error
    node = node_of(settings, Origin(source=PYTHON))
    if not isinstance(node, Table) or isinstance(settings, Mapping):
        raise InputError(f"{settings!r} is no config.", fix="Give a Params or a dataclass.")
    return node


def node_of(value: Any, origin: Origin, where: str = "") -> Node:
    """Return the node for a value of a Python program."""
    if hasattr(type(value), "tree"):
        node: Node = value.tree()
        return node
    match value:
        case Enum():
            return from_plain(value.value, origin)
        case PurePath():
            return from_plain(os.fspath(value), origin)
        case list() | tuple():
            row = [node_of(item, origin, f"{where}[{i}]") for i, item in enumerate(value)]
            return List(tuple(row), origin)
        case Mapping():
            notes = getattr(value, "_notes", None)  # of a group
            return table_of(value.items(), notes.origins if notes else {}, origin, where)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _dataclass_tree(value, origin, where)
        case _ if hasattr(type(value), "keys") and hasattr(type(value), "__getitem__"):
            items = ((name, value[name]) for name in list(value.keys()))
            return table_of(items, {}, origin, where)
        case bool() | None | int() | float() | str() | date() | time():
            return from_plain(value, origin)
        case _:
            raise InputError(
                f"`{where}` is of type {type(value).__name__}, which no config can hold.",
                where=str(origin),
                fix="Write the call down instead: L(Name)(...)"
                ' or {"type": "package.module.Name", ...}.',
            )


def table_of(
    items: Iterable[tuple[Any, Any]], origins: Mapping[str, Origin], origin: Origin, where: str = ""
) -> Table:
    """Return the table of these values; `origins` gives the place of each, else `origin` does."""
    nodes: dict[str, Node] = {}
    for name, value in items:
        if not isinstance(name, str):
            raise InputError(f"The key {name!r} of `{where}` is no string.", where=str(origin))
        nodes[name] = node_of(value, origins.get(name, origin), f"{where}.{name}".lstrip("."))
    return Table(nodes, origin, {name: origins.get(name, origin) for name in nodes})


def _dataclass_tree(value: Any, origin: Origin, where: str) -> Table:
    """Return the tree of a dataclass: a default has its field's origin, others the object's."""
    kind = type(value)
    fields = [each for each in dataclasses.fields(value) if each.init]
    lines: dict[str, int] = {}
    source = PYTHON
    try:
        source = inspect.getsourcefile(kind) or PYTHON
        _, line = inspect.getsourcelines(kind)
        lines = class_body_lines(kind.__name__, Origin(source=source, line=line))
    except (OSError, TypeError):
        pass  # made where there is no file

    items = [(each, getattr(value, each.name)) for each in fields]
    origins = {
        each.name: Origin(source=source, line=lines[each.name])
        for each, item in items
        if each.name in lines
        and (item is each.default or each.default_factory is not dataclasses.MISSING)
    }
    return table_of(((each.name, item) for each, item in items), origins, origin, where)


def class_body_lines(name: str, origin: Origin) -> dict[str, int]:
    """Return the line of each name that the body of the class `name` sets.

    `origin` is the class statement or a line above it, such as a decorator.
    """
    lines = linecache.getlines(origin.source)[max(0, origin.line - 1) :]
    statement = re.compile(rf"\s*class\s+{name}\b")
    start = next((i for i, line in enumerate(lines) if statement.match(line)), None)
    if start is None:
        return {}
    try:
        block = "".join(inspect.getblock(lines[start:]))
        (body,) = ast.parse(textwrap.dedent(block)).body
    except (SyntaxError, ValueError, tokenize.TokenError):
        return {}
    first = origin.line + start - 1
    return dict(_lines_of_names(body, first)) if isinstance(body, ast.ClassDef) else {}


def _lines_of_names(body: ast.ClassDef, first: int) -> Iterator[tuple[str, int]]:
    for statement in body.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, first + statement.lineno
            case ast.Assign(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield target.id, first + statement.lineno
