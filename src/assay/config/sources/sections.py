"""Names of a Python config that are sections of it, and the tree that they make."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from assay.config.sources.classes import tree_of
from assay.config.sources.objects import TreeMaker, makes_tree, things_inside
from assay.config.sources.positions import MAX_VALUES
from assay.config.translator import translator
from assay.config.tree import Table, problem_at
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import AssayError, nearest

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
    if whole is not None and (_is_table(whole) or makes_tree(whole)):
        try:
            root = tree_of(whole) if makes_tree(whole) else maker.root(dict(whole), {})
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
    counts = _count_uses(values)
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
        not isinstance(each, type) and (_is_table(each) or makes_tree(each))
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


def _count_uses(names: Mapping[str, Any]) -> Counter[int]:
    """Count the references to each object, by id: from names, tables and lists."""
    counts: Counter[int] = Counter()
    todo = list(names.values())
    counts.update(map(id, todo))
    seen: set[int] = set()
    while todo and len(seen) <= MAX_VALUES:
        here = todo.pop()
        if id(here) not in seen:
            seen.add(id(here))
            inner = [item for _, item in things_inside(here)]
            counts.update(map(id, inner))
            todo += inner
    return counts
