"""Leaves of a saved config by dotted key, parsed a statement at a time."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from assay.store.cells import Cell, to_cell
from assay.store.index_rows import Item

MAX_CONFIG_BYTES = 16 << 20

# A line that begins a key or a table, and the lines after it that are indented or close a list.
_STATEMENT = re.compile(r"[^\n]*\n?(?:[ \t\]][^\n]*\n?)*")
_MOST_CACHED = 500
_NONE = "@none"  # TOML has no null
_FROM = "  # from "
_COPIED = re.compile(_FROM + r"(?P<key>[\w.\[\]-]+)$")


def config_items(text: str) -> Iterator[Item]:
    """Yield the leaves of a config in TOML by dotted key; ValueError when it is no TOML.

    Runs of one project share most statements of their configs. Each is parsed once, which takes a
    twentieth of the time of parsing every config as a whole. A key that only others were copied
    from has their value.
    """
    try:
        items = [item for items in _by_statement(text) for item in items]
    except ValueError:  # a list of tables, a text of several lines: only the whole can be parsed
        items = list(_flat(tomllib.loads(text)))
    yield from items
    if _FROM in text:
        yield from _sources(text, {item.name: item.value for item in items})


def _sources(text: str, values: Mapping[str, Cell]) -> Iterator[Item]:
    """Yield the keys that values of a saved config were copied from, and which were."""
    sources: dict[str, Cell] = {}
    prefix: str | None = ""
    for line in text.split("\n"):
        if line.startswith("["):
            prefix = None if line.startswith("[[") else _prefix_of(line)
        elif prefix is not None and (found := _COPIED.search(line)) is not None:
            with contextlib.suppress(ValueError):  # a line of a text, or of a list
                name = f"{prefix}{next(iter(tomllib.loads(line)))}"
                if name in values and found["key"] not in values:
                    sources[found["key"]] = values[name]
                    yield Item("copy", name, found["key"])
    for key, value in sources.items():
        yield Item("config", key, value)


def _by_statement(text: str) -> Iterator[tuple[Item, ...]]:
    """Yield the items of each statement; ValueError when a statement is not complete in itself.

    What a statement leaves open it cannot be parsed without, so that the next one begins where the
    one before it has ended.
    """
    prefix = ""
    for statement in _STATEMENT.findall(text):
        if statement.startswith("["):
            prefix = _prefix_of(statement)
        elif len(statement) <= _MOST_CACHED:
            yield _parse(statement, prefix)
        else:
            yield tuple(_flat(tomllib.loads(statement), prefix))


@lru_cache(maxsize=4096)
def _parse(statement: str, prefix: str) -> tuple[Item, ...]:
    return tuple(_flat(tomllib.loads(statement), prefix))


@lru_cache(maxsize=1024)
def _prefix_of(head: str) -> str:
    """Return the prefix of the keys below a head like `[model.encoder]`.

    ValueError for a list of tables.
    """
    if head.startswith("[["):
        raise ValueError(head)
    prefix = ""
    table = tomllib.loads(head)
    while table:
        ((key, table),) = table.items()
        prefix += f"{key}."
    return prefix


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[Item]:
    """Yield the leaves of a config by dotted key, also from lists of tables."""
    for key, value in values.items():
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            for i, each in enumerate(value):
                yield from _flat(
                    each if isinstance(each, dict) else {"": each}, f"{prefix}{key}[{i}]."
                )
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            known = None if value == _NONE else value
            yield Item("config", f"{prefix}{key}".rstrip("."), to_cell(known))
