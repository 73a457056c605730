"""Tree of the names that a Python config defines: which they are, and what stands for each."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from assay.config.lazy import Call, Section, Spot, target_of
from assay.config.sources.classes import tree_of
from assay.config.sources.positions import MAX_VALUES, too_deep, too_many
from assay.config.translator import translator
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
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import AssayError, nearest

FACTORY = "_partial_"
_OTHER_TYPE = "_target_"
"""`type` as Hydra, detectron2 and LiBai call it; told and renamed after the tree is made."""


def read_object(value: object, source: str) -> tuple[Table, list[Problem]]:
    """Return the tree of a mapping, a Params or a dataclass, and the problems in it."""
    origin = Origin(source=source)
    maker = TreeMaker({}, origin)
    try:
        if not is_holder(value) and hasattr(value, "keys") and hasattr(value, "__getitem__"):
            given: Any = lift(value, {})
            names = {key: given[key] for key in given.keys()}  # noqa: SIM118 - only mapping-like
            return maker.root(names, {}), maker.problems
        return tree_of(value), []
    except OversizedError as stop:
        return Table({}, origin), [stop.problem]


def is_holder(value: Any) -> bool:
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
        if is_holder(value) and not isinstance(value, type):
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


def uses(names: Mapping[str, Any]) -> Counter[int]:
    """Count the references to each object, by id: from names, tables and lists."""
    counts: Counter[int] = Counter()
    todo = list(names.values())
    counts.update(map(id, todo))
    seen: set[int] = set()
    while todo and len(seen) <= MAX_VALUES:
        here = todo.pop()
        if id(here) not in seen:
            seen.add(id(here))
            inner = [item for _, item in _inside(here)]
            counts.update(map(id, inner))
            todo += inner
    return counts


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
        todo.extend(reversed([(item, (*path, part)) for part, item in _inside(here)]))
    return found


def _inside(value: Any) -> list[tuple[str | int, Any]]:
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


# --- names that make the tree ---------------------------------------------------------------------


WHOLE = "config"
"""A name that is the whole config: a Params, a dataclass or a dictionary."""

_SECTIONS = {*(key.name for key in schema.SECTIONS), *schema.MAKERS}
_PLAIN = {key.name for key in schema.SECTIONS if key.kind not in ("call", "table", "tables")}
_AS_TEXT = {*_PLAIN, "load_weights"}
"""Standard keys that may be plain values; `load_weights` is a path or a table."""
_NEAR = 0.75


def tree_of_names(
    values: Mapping[str, Any],
    origins: Mapping[str, Origin],
    imported: Collection[str],
    maker: TreeMaker,
) -> tuple[Table, list[Problem]]:
    """Return the tree of the public names of an executed config, and its problems."""
    start = maker.origin
    whole = values.get(WHOLE)
    if whole is not None and (_is_table(whole) or is_holder(whole)):
        try:
            root = tree_of(whole) if is_holder(whole) else maker.root(dict(whole), {})
        except AssayError as error:
            place = origins.get(WHOLE, start)
            problem = Problem(kind="wrong-type", message=str(error), origin=place)
            return Table({}, start), [problem]
        return Table(root.items, start, root.key_origins), maker.problems
    chosen, problems = _choose(values, origins, imported, start)
    root = maker.root(chosen, origins)
    return root, [*problems, *maker.problems]


def _is_table(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "keys") and hasattr(value, "__getitem__")


def _choose(
    values: Mapping[str, Any],
    origins: Mapping[str, Origin],
    imported: Collection[str],
    start: Origin,
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the names that are sections, and a problem for each that only looks like one.

    Standard names always are, and those of the older system whose config this is, imported or not.
    Other tables and lists of tables are when they were made here and stand nowhere else in the
    config; numbers, text, classes and functions are what a program needs on its way, unless they
    are called almost like a standard key. A leading underscore says the same of anything.
    """
    problems: list[Problem] = []
    sections = {*_SECTIONS, *schema.LAUNCH, *translator().sections_of(values)}
    chosen = {
        name: value for name, value in values.items() if name in sections and _can_be_value(value)
    }
    others = {name: value for name, value in values.items() if name not in chosen}
    counts = uses(values)
    for name, value in others.items():
        is_imported = name in imported
        message = fix = ""
        if _is_part(value):
            wanted = _suggest(name, chosen)
            others_use = counts[id(value)] - 1
            if others_use == 0 and wanted and is_imported:
                message = f"`{name}` is no section, and the config has no `{wanted}`"
                fix = f"write {wanted} = {name}"
            elif others_use > 1 or (others_use == 0 and not is_imported):
                chosen[name] = value
        elif isinstance(value, bool | int | float | str | list | tuple) and not is_imported:
            near = nearest(name, _AS_TEXT - values.keys(), cutoff=_NEAR)
            if near:
                message = f"unknown key `{name}`"
                fix = f"did you mean `{near[0]}`? A leading `_` says that it is no key"
        if message:
            origin = origins.get(name, start)
            problems.append(problem_at("unknown-key", message, origin, name, fix))
    return {name: chosen[name] for name in values if name in chosen}, problems


def _is_part(value: Any) -> bool:
    """Return True for a table, an object with fields, or a list of them: it could be a section."""
    is_list = isinstance(value, list | tuple) and not hasattr(value, "_fields")
    return any(
        not isinstance(each, type) and (_is_table(each) or is_holder(each))
        for each in (value if is_list else [value])
    )


def _can_be_value(value: Any) -> bool:
    """Return False for a class or function, which has a section's name by accident."""
    return not isinstance(
        value, types.FunctionType | types.BuiltinFunctionType | type | types.ModuleType
    )


def _suggest(name: str, chosen: Mapping[str, Any]) -> str:
    """Return the required section that was bound to another name: `model` for `bert_model`."""
    parts = name.lower().split("_")
    return next(
        (part for part in reversed(parts) if part in _SECTIONS - _PLAIN and part not in chosen), ""
    )
