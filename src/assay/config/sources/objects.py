"""Tree of the names that a Python config defines: which they are, and what stands for each."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from assay.config.lazy import Call, Section, Spot, target_of
from assay.config.sources.classes import tree_of
from assay.config.sources.positions import MAX_VALUES, too_deep, too_many
from assay.config.sources.source_map import Expression, SourceFile
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
            given: Any = lift(value, None, {})
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


def lift(value: Any, expression: Expression | None, memo: dict[int, Any]) -> Any:
    """Replace every plain dictionary in `value` by a Section that knows the lines of its keys.

    One object stays one object. Sections and calls are kept, and filled in place.
    """
    if id(value) in memo:
        return memo[id(value)][1]
    if type(value) not in (dict, list, tuple) and not isinstance(value, Section):
        return value
    if len(memo) > MAX_VALUES:
        return value  # refused when the tree is made
    made: Any
    if isinstance(value, dict):
        made = value if isinstance(value, Section) else Section()
        memo[id(value)] = value, made
        if made is not value:
            spot = expression.file.spot(expression.node) if expression is not None else None
            made.__dict__["_spot"] = spot
        for key, item in list(value.items()):
            entry = None
            if expression is not None and isinstance(key, str):
                entry = expression.entry(key)
            inner = entry.value if entry is not None else None
            dict.__setitem__(made, key, lift(item, inner, memo))
        return made
    memo[id(value)] = value, value  # for a list that holds itself
    items = [
        lift(item, expression.item(i) if expression else None, memo) for i, item in enumerate(value)
    ]
    made = items if isinstance(value, list) else tuple(items)
    memo[id(value)] = value, made
    return made


def mark_sections(values: Mapping[str, Any], file: SourceFile, memo: Mapping[int, Any]) -> None:
    """Note a module's assignments, made on plain dictionaries, on the Sections of `lift`."""
    fresh = {id(made) for given, made in memo.values() if made is not given}
    for edit in reversed(file.edits):
        here: Any = values.get(edit.names[0])
        for name in edit.names[1:]:
            here = here.get(name) if isinstance(here, dict) else None
        written = file.expression(edit.spot)
        if id(here) not in fresh or not isinstance(here, Section) or written is None:
            continue
        for key in (
            [edit.key] if edit.key is not None else [key for key in here if written.entry(key)]
        ):
            if key in here:
                here._spots.setdefault(key, edit.spot)


class TreeMaker:
    """Builder of one tree from the names of a config. The second use of a call becomes `"@path"`.

    >>> TreeMaker({}, Origin(source="x")).root({"seed": 1}, {}).items["seed"].value
    1
    """

    def __init__(self, files: Mapping[str, SourceFile], origin: Origin) -> None:
        self.files = files
        self.origin = origin
        self.problems: list[Problem] = []
        self.homes: dict[int, KeyPath] = {}
        self.values = 0
        self.calls = 0  # around what is being read

    def root(
        self, names: Mapping[str, Any], entries: Mapping[str, tuple[Origin, Expression | None]]
    ) -> Table:
        self.homes = _homes(names)
        self.calls += _is_call(names)
        items: dict[str, Node] = {}
        key_origins: dict[str, Origin] = {}
        for name, value in names.items():
            origin, expression = entries.get(name, (self.origin, None))
            node = self.item(name, value, (), origin, expression)
            if node is not None:
                items[name], key_origins[name] = node, origin
        return Table(items, self.origin, key_origins)

    def node(
        self, value: Any, path: KeyPath, around: Origin, expression: Expression | None
    ) -> Node | None:
        """Return the node for `value`; None, with a problem, when no config can hold it."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise OversizedError(too_many(self.origin.source))
        origin = (
            expression.origin() if expression is not None and expression.says(value) else around
        )
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
                return self.section(value, path, origin, expression)
        if self.calls and (fields := _fields_of(value)) is not None:
            return self.call(type(value), fields, path, origin)
        if is_holder(value) and not isinstance(value, type):
            return self.holder(value, path, origin)
        if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
            return self.mapping(value, path, origin, expression)
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | range):
            return self.list(value, path, origin, expression)
        return self.name(value, path, origin)

    def section(
        self, value: Section, path: KeyPath, origin: Origin, expression: Expression | None
    ) -> Node:
        spot = value._spot
        own = self.expression(spot) or (expression if spot is None else None)
        if own is not None:
            origin = own.origin()
        elif spot is not None:
            origin = self.at(spot) or origin
        items: dict[str, Node] = {}
        key_origins: dict[str, Origin] = {}
        given: Mapping[Any, Any] = value
        is_call = _is_call(given)
        self.calls += is_call
        for key, item in given.items():
            if not isinstance(key, str):
                self.wrong(f"the key {key!r} of `{dotted(path)}` is no string", path, origin)
                continue
            key_origin, inner = self.entry(value, key, own, origin)
            node = self.item(key, item, path, key_origin, inner)
            if node is not None:
                items[key], key_origins[key] = node, key_origin
        self.calls -= is_call
        return Table(items, origin, key_origins)

    def item(
        self, key: str, item: Any, path: KeyPath, origin: Origin, expression: Expression | None
    ) -> Node | None:
        """Return the node of a key; a class in the call of another system becomes its name."""
        if key == _OTHER_TYPE and callable(item):
            return Leaf(target_of(item), origin)
        return self.node(item, (*path, key), origin, expression)

    def entry(
        self, section: Section, key: str, own: Expression | None, origin: Origin
    ) -> tuple[Origin, Expression | None]:
        """Return the origin of a section's key, and the expression of its value."""
        spot = section._spots.get(key)
        if spot is not None:
            found = self.expression(spot)
            entry = found.entry(key) if found is not None else None
            return (
                (entry.origin, entry.value)
                if entry is not None
                else (self.at(spot) or origin, None)
            )
        entry = own.entry(key) if own is not None else None
        if entry is not None:
            return entry.origin, entry.value
        return origin, None

    def mapping(
        self, value: Any, path: KeyPath, origin: Origin, expression: Expression | None
    ) -> Table:
        """Anything with keys and values, such as what OmegaConf makes."""
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
            entry = expression.entry(key) if expression is not None else None
            key_origin = entry.origin if entry is not None else origin
            try:
                item = value[key]
            except Exception as error:  # a value that cannot be had, such as "???"
                item = _interpolation(value, key)
                if item is None:
                    message = f"`{dotted((*path, key))}` cannot be read: {_first_line(error)}"
                    self.wrong(message, (*path, key), key_origin)
                    continue
            node = self.item(
                key, item, path, key_origin, entry.value if entry is not None else None
            )
            if node is not None:
                items[key], key_origins[key] = node, key_origin
        self.calls -= is_call
        return Table(items, origin, key_origins)

    def list(
        self, value: Sequence[Any], path: KeyPath, origin: Origin, expression: Expression | None
    ) -> List:
        items: list[Node] = []
        for i, item in enumerate(value):
            node = self.node(
                item, (*path, i), origin, expression.item(i) if expression is not None else None
            )
            if node is not None:
                items.append(node)
        return List(tuple(items), origin)

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
            node = self.node(item, (*path, key), origin, None)
            if node is not None:
                items[key] = node
        return Table(items, origin)

    def wrong(self, message: str, path: KeyPath, origin: Origin, fix: str = "") -> None:
        self.problems.append(problem_at("wrong-type", message, origin, path, fix))

    def expression(self, spot: Spot | None) -> Expression | None:
        file = self.files.get(spot.file) if spot is not None else None
        return file.expression(spot) if file is not None and spot is not None else None

    def at(self, spot: Spot) -> Origin | None:
        """Return the origin of a spot without a known expression: in plain code, or in no file."""
        file = self.files.get(spot.file)
        if file is not None:
            return file.origin((spot.line, spot.column, spot.end_line, spot.end_column))
        return Origin(source=spot.file, line=spot.line) if os.path.exists(spot.file) else None


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


def tree_of_module(
    module: types.ModuleType, file: SourceFile, files: dict[str, SourceFile]
) -> tuple[Table, list[Problem]]:
    """Return the tree of an executed config, and its problems; `files` are all that were read."""
    values = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    start = Origin(source=file.source)
    maker = TreeMaker(files, start)
    whole = values.get(WHOLE)
    if whole is not None and (_is_table(whole) or is_holder(whole)):
        try:
            root = tree_of(whole) if is_holder(whole) else maker.root(dict(whole), {})
        except AssayError as error:
            place, _ = _entry(file, WHOLE)
            problem = Problem(kind="wrong-type", message=str(error), origin=place)
            return Table({}, start), [problem]
        return Table(root.items, start, root.key_origins), maker.problems
    chosen, problems = _choose(values, file)
    root = maker.root(chosen, {name: _entry(file, name) for name in chosen})
    return root, [*problems, *maker.problems]


def _entry(file: SourceFile, name: str) -> tuple[Origin, Expression | None]:
    found = file.name(name)
    return (found.origin, found.value) if found is not None else (Origin(source=file.source), None)


def _is_table(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "keys") and hasattr(value, "__getitem__")


def _choose(values: Mapping[str, Any], file: SourceFile) -> tuple[dict[str, Any], list[Problem]]:
    """Return the names that are sections, and a problem for each that only looks like one.

    Standard names always are. Other tables and lists of tables are when they were made here and
    stand nowhere else in the config; numbers, text, classes and functions are what a program needs
    on its way, unless they are called almost like a standard key. A leading underscore says the
    same of anything.
    """
    problems: list[Problem] = []
    chosen = {
        name: value
        for name, value in values.items()
        if (name in _SECTIONS or name in schema.LAUNCH) and _can_be_value(value)
    }
    others = {name: value for name, value in values.items() if name not in chosen}
    counts = uses(values)
    for name, value in others.items():
        is_imported = file.is_imported(name)
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
            origin = _entry(file, name)[0]
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
