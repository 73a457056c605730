"""Tree of the names that a Python config defines: which they are, and what stands for each."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from assay.config.lazy import Call, Section, Spot, target_of
from assay.config.sources.classes import tree_of
from assay.config.sources.positions import MAX_VALUES, too_deep, too_many
from assay.config.tree import (
    MAX_DEPTH,
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    dotted,
    leaf_of,
    problem_at,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import AssayError

FACTORY = "_partial_"
_OTHER_TYPE = "_target_"
"""`type` as Hydra, detectron2 and LiBai call it; told and renamed after the tree is made."""


def read_object(value: object, source: str) -> tuple[Table, list[Problem]]:
    """Return the tree of a mapping, a Params or a dataclass, and the problems in it."""
    origin = Origin(source=source)
    maker = TreeMaker({}, origin)
    try:
        if not makes_tree(value) and hasattr(value, "keys") and hasattr(value, "__getitem__"):
            given: Any = lift(value, {})
            names = {key: given[key] for key in given.keys()}  # noqa: SIM118 - only mapping-like
            return maker.root(names, {}), maker.problems
        return tree_of(value), []
    except OversizedError as stop:
        return Table({}, origin), [stop.problem]


def makes_tree(value: Any) -> bool:
    """Return whether `value` is a Params or a dataclass, or a class of either."""
    return not isinstance(value, Section) and (
        hasattr(value, "__dataclass_fields__") or hasattr(value, "tree")
    )


class OversizedError(Exception):
    """Config with more values than any config may have."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def lift(value: Any, memo: dict[int, Any]) -> Any:
    """Replace every plain dictionary in `value` by a Section, which has attributes.

    One object stays one object. Sections and calls are kept, and filled in place.
    """
    if id(value) in memo:
        return memo[id(value)][1]
    if type(value) not in (dict, list, tuple) and not isinstance(value, Section):
        return value
    if len(memo) > MAX_VALUES:
        return value  # refused when the tree is made
    if isinstance(value, dict):
        made = value if isinstance(value, Section) else Section.without_place()
        memo[id(value)] = value, made
        for key, item in list(value.items()):
            dict.__setitem__(made, key, lift(item, memo))
        return made
    memo[id(value)] = value, value  # for a list that holds itself
    items = [lift(item, memo) for item in value]
    memo[id(value)] = value, items if isinstance(value, list) else tuple(items)
    return memo[id(value)][1]


class TreeMaker:
    """Builder of one tree from the names of a config. The second use of a call becomes `"@path"`.

    `sources` are the files that were read as configs, by the name that users know.

    >>> TreeMaker({}, Origin(source="x")).root({"seed": 1}, {}).items["seed"].value
    1
    """

    def __init__(self, sources: Mapping[str, str], origin: Origin) -> None:
        self.sources = sources
        self.origin = origin
        self.problems: list[Problem] = []
        self.homes: dict[int, KeyPath] = {}
        self.values = 0
        self.calls = 0  # around what is being read

    def root(self, names: Mapping[str, Any], origins: Mapping[str, Origin]) -> Table:
        self.homes = _homes(names)
        self.calls += _is_call(names)
        items: dict[str, Node] = {}
        key_origins: dict[str, Origin] = {}
        for name, value in names.items():
            origin = origins.get(name, self.origin)
            node = self.item(name, value, (), origin)
            if node is not None:
                items[name], key_origins[name] = node, origin
        return Table(items, self.origin, key_origins)

    def node(self, value: Any, path: KeyPath, origin: Origin) -> Node | None:
        """Return the node for `value`; None, with a problem, when no config can hold it."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise OversizedError(too_many(self.origin.source))
        if len(path) > MAX_DEPTH:
            raise OversizedError(too_deep(origin))
        if isinstance(value, Enum):
            value = value.value
        elif getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
            value = value.item()  # a number of numpy or torch
        leaf = leaf_of(value, origin)
        if leaf is not None:
            return leaf
        match value:
            case os.PathLike():
                return Leaf(str(os.fspath(value)), origin)
            case Call() if self.homes.get(id(value), path) != path:
                return Leaf(f"@{dotted(self.homes[id(value)])}", origin)
            case Section():
                return self.mapping(value, path, self.place(value._spot, origin), value._spots)
        if self.calls and (fields := _fields_of(value)) is not None:
            return self.call(type(value), fields, path, origin)
        if makes_tree(value) and not isinstance(value, type):
            return self.holder(value, path, origin)
        if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
            return self.mapping(value, path, origin, {})
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | range):
            return self.list(value, path, origin)
        return self.name(value, path, origin)

    def item(self, key: str, item: Any, path: KeyPath, origin: Origin) -> Node | None:
        """Return the node of a key; a class in the call of another system becomes its name."""
        if key == _OTHER_TYPE and callable(item):
            return Leaf(target_of(item), origin)
        return self.node(item, (*path, key), origin)

    def mapping(
        self, value: Any, path: KeyPath, origin: Origin, spots: Mapping[str, Spot | None]
    ) -> Table:
        """Return the table of anything with keys and values, such as what OmegaConf makes."""
        items: dict[str, Node] = {}
        key_origins: dict[str, Origin] = {}
        is_call = _is_call(value)
        self.calls += is_call
        # keys(): only mapping-like, so that iterating may mean something else
        for key in value.keys():  # noqa: SIM118
            if isinstance(key, Enum):
                key = key.name
            if not isinstance(key, str):
                self.wrong(f"the key {key!r} of `{dotted(path)}` is no string", path, origin)
                continue
            key_origin = self.place(spots.get(key), origin)
            try:
                item = value[key]
            except Exception as error:  # a value that cannot be had, such as "???"
                item = _interpolation(value, key)
                if item is None:
                    message = f"`{dotted((*path, key))}` cannot be read: {_first_line(error)}"
                    self.wrong(message, (*path, key), key_origin)
                    continue
            node = self.item(key, item, path, key_origin)
            if node is not None:
                items[key], key_origins[key] = node, key_origin
        self.calls -= is_call
        return Table(items, origin, key_origins)

    def list(self, value: Sequence[Any], path: KeyPath, origin: Origin) -> List:
        nodes = [self.node(item, (*path, i), origin) for i, item in enumerate(value)]
        return List(tuple(node for node in nodes if node is not None), origin)

    def holder(self, value: Any, path: KeyPath, origin: Origin) -> Node | None:
        """Return the tree that a Params or a dataclass makes of itself."""
        try:
            return tree_of(value)
        except AssayError as error:
            self.wrong(error.what, path, origin)
            return None

    def name(self, value: Any, path: KeyPath, origin: Origin) -> Node | None:
        """Return the name of a class or function that stands as a value."""
        if isinstance(
            value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType
        ):
            return Table(
                {"type": Leaf(target_of(value), origin), FACTORY: Leaf(True, origin)}, origin
            )
        if isinstance(value, functools.partial):
            arguments = {**({"args": list(value.args)} if value.args else {}), **value.keywords}
            return self.call(value.func, {FACTORY: True, **arguments}, path, origin)
        if isinstance(value, set | frozenset):
            self.wrong(
                f"`{dotted(path)}` is a set, which has no order", path, origin, "write a list"
            )
        else:
            kind = type(value).__name__
            message = f"`{dotted(path)}` is a {kind}, which cannot be written down"
            self.wrong(message, path, origin, f"write L({kind})(...): the call, not what it makes")
        return None

    def call(
        self, target: Any, arguments: Mapping[str, Any], path: KeyPath, origin: Origin
    ) -> Node:
        """Return the call of `target` with these arguments, all at one origin."""
        items: dict[str, Node] = {"type": Leaf(target_of(target), origin)}
        for key, item in arguments.items():
            node = self.node(item, (*path, key), origin)
            if node is not None:
                items[key] = node
        return Table(items, origin)

    def wrong(self, message: str, path: KeyPath, origin: Origin, fix: str = "") -> None:
        self.problems.append(problem_at("wrong-type", message, origin, path, fix))

    def place(self, spot: Spot | None, around: Origin) -> Origin:
        """Return the origin of what was written at `spot`; `around` where that is in no file."""
        if spot is None or not (spot.file in self.sources or os.path.exists(spot.file)):
            return around
        return Origin(source=self.sources.get(spot.file, spot.file), line=spot.line)


def _homes(names: Mapping[str, Any]) -> dict[int, KeyPath]:
    """Return the path of each call: at the top level if it is there, else where it is met first."""
    found: dict[int, KeyPath] = {}
    for name, value in names.items():
        if isinstance(value, Call):
            found.setdefault(id(value), (name,))
    todo: list[tuple[Any, KeyPath]] = [
        (value, (name,)) for name, value in reversed(list(names.items()))
    ]
    seen: set[int] = set()
    while todo and len(seen) <= MAX_VALUES:
        here, path = todo.pop()
        if id(here) in seen or len(path) > MAX_DEPTH:
            continue
        seen.add(id(here))
        if isinstance(here, Call):
            path = found.setdefault(id(here), path)
        todo.extend(reversed([(item, (*path, part)) for part, item in things_inside(here)]))
    return found


def things_inside(value: Any) -> list[tuple[str | int, Any]]:
    """Return the containers in a table or list, with their keys or indices."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, Mapping):
        try:
            items = [(key, value[key]) for key in value]
        except Exception:  # told when the tree is made
            return []
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | range):
        items = enumerate(value)
    plain = (str, int, float, type(None))
    return [
        (key, item)
        for key, item in items
        if not isinstance(item, plain) and isinstance(key, str | int)
    ]


def _is_call(value: Any) -> bool:
    keys = value.keys()
    return "type" in keys or _OTHER_TYPE in keys


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the non-default arguments of a dataclass or named tuple; None if not callable so."""
    kind: Any = type(value)
    given: dict[str, Any]
    if kind.__module__ == "__main__" or "<" in kind.__qualname__:
        return None
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        defaults = kind._field_defaults
        given = dict(zip(kind._fields, value, strict=True))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [each for each in dataclasses.fields(value) if each.init]
        defaults = {each.name: each.default for each in fields}
        given = {each.name: getattr(value, each.name) for each in fields}
    else:
        return None
    if "type" in given:  # it says itself what is called
        return None
    return {
        name: item
        for name, item in given.items()
        if not (name in defaults and defaults[name] is item)
    }


def _interpolation(value: Any, key: str) -> str | None:
    """Return an omegaconf interpolation that leads out of its container, for later resolution."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not isinstance(value, omegaconf.Container):
        return None
    if not omegaconf.OmegaConf.is_interpolation(value, key):
        return None
    return str(omegaconf.OmegaConf.to_container(value, resolve=False)[key])


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
