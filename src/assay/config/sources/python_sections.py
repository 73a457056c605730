"""Sections of an executed Python config: which of its names make the tree."""

from __future__ import annotations

import types
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from assay.config.sources.classes import tree_of
from assay.config.sources.objects import TreeMaker, is_holder, uses
from assay.config.sources.source_map import Expression, SourceFile
from assay.config.tree import Table
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import AssayError

WHOLE = "config"
"""A name that is the whole config: a Params, a dataclass or a dictionary."""

_SECTIONS = {*(key.name for key in schema.SECTIONS), *schema.MAKERS}
_PLAIN = {key.name for key in schema.SECTIONS if key.kind not in ("call", "table", "tables")}


def sections_of(
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

    Standard names always are. Other tables are when they were made here and stand nowhere else in
    the config; numbers, text, classes and functions are what a program needs on its way. A leading
    underscore says the same of anything.
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
        if not isinstance(value, type) and (_is_table(value) or is_holder(value)):
            wanted = _suggest(name, chosen)
            others_use = counts[id(value)] - 1
            if others_use == 0 and wanted and is_imported:
                message = f"`{name}` is no section, and the config has no `{wanted}`"
                fix = f"write {wanted} = {name}"
            elif others_use > 1 or (others_use == 0 and not is_imported):
                chosen[name] = value
        elif isinstance(value, bool | int | float | str) and not is_imported:
            near = _nearest_plain(name, values)
            if near:
                message = f"unknown key `{name}`"
                fix = f"did you mean `{near}`? A leading `_` says that it is no key"
        if message:
            origin = _entry(file, name)[0]
            problems.append(
                Problem(kind="unknown-key", message=message, origin=origin, key=name, fix=fix)
            )
    return {name: chosen[name] for name in values if name in chosen}, problems


def _nearest_plain(name: str, values: Mapping[str, Any]) -> str:
    """Return the plain standard key, missing from the config, that `name` resembles; else ""."""

    def likeness(key: str) -> float:
        return SequenceMatcher(None, name, key).ratio()

    near = max(_PLAIN - values.keys(), key=likeness, default="")
    return near if near and likeness(near) > 0.75 else ""


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
