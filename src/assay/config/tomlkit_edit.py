"""Edits of one key of a TOML text by tomlkit, which keeps comments but not every blank.

tomlkit takes longer to load than most configs to edit, so `edit` imports this module last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from assay.config.tree import NONE, KeyPath, Leaf, List, Node, Table, plain

# Besides its own errors tomlkit raises these, for texts and edits that it does not foresee.
_ERRORS = (
    TOMLKitError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    RecursionError,
)


def with_key(text: str, path: KeyPath, value: Node) -> str | None:
    """Return `text` with `value` at `path`; None where tomlkit cannot do it."""
    return _edited(text, path, lambda holder: _put(holder, path, value))


def without_key(text: str, path: KeyPath) -> str | None:
    """Return `text` without the key at `path`; None where tomlkit cannot do it."""

    def remove(holder: Any) -> None:
        del holder[path[-1]]

    return _edited(text, path, remove)


def _edited(text: str, path: KeyPath, change: Callable[[Any], object]) -> str | None:
    try:
        document = tomlkit.parse(text)
        change(_holder(document, path))
        return tomlkit.dumps(document)
    except _ERRORS:
        return None


def _holder(document: Any, path: KeyPath) -> Any:
    """Return tomlkit's table or list for the last key of `path`; missing tables are made."""
    holder = document
    for i, part in enumerate(path[:-1]):
        if isinstance(part, str) and part not in holder:
            # Above it there is nothing but tables: the header of the last one says it all.
            holder[part] = tomlkit.table(is_super_table=i < len(path) - 2)
        holder = holder[part]
    return holder


def _put(holder: Any, path: KeyPath, value: Node) -> None:
    given = plain(_spelled(value))
    item = tomlkit.item(given)
    if isinstance(value, Table):
        item = tomlkit.inline_table()
        item.update(given)
    if path[-1] == len(holder) and isinstance(path[-1], int):
        holder.append(item)
    else:
        holder[path[-1]] = item


def _spelled(node: Node) -> Node:
    """Return `node` with None as TOML spells it."""
    match node:
        case Leaf(None):
            return replace(node, value=NONE)
        case List():
            return replace(node, items=tuple(map(_spelled, node.items)))
        case Table():
            return replace(node, items={key: _spelled(item) for key, item in node.items.items()})
        case _:
            return node
