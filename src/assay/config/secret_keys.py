"""Secrets in a tree: replaced before it is written down, and reported when it is to run."""

from __future__ import annotations

import re
from dataclasses import replace

from assay.config.tree import KeyPath, Leaf, List, Node, Table, walk
from assay.core.secrets.names import is_redacted
from assay.core.secrets.replacement import Secrets, name_below

_REFERENCE = re.compile(r"@[A-Za-z_][\w.\[\]-]*")


def without_secrets(
    root: Table, secrets: Secrets | None = None, *, has_references: bool = True
) -> Table:
    """Return `root` with a placeholder for each secret: by name, in texts, and known ones.

    Without `has_references`, as in the config of a script, `@name` is a text like any other.
    """
    cleaned = _clean(root, "", secrets or Secrets(), has_references)
    assert isinstance(cleaned, Table)
    return cleaned


def redacted_keys(root: Table) -> list[KeyPath]:
    """Return the paths of what was left out of a saved config."""
    return [
        path
        for path, node in walk(root)
        if isinstance(node, Leaf) and any(map(is_redacted, (node.value, *path)))
    ]


def _clean(node: Node, name: str, secrets: Secrets, has_references: bool) -> Node:
    match node:
        case Leaf(value=str() as text) if has_references and _REFERENCE.fullmatch(text):
            return node
        case Leaf(value=str() | int() as value) if not isinstance(value, bool):
            clean = secrets.tree(value, name)
            return node if clean == value else replace(node, value=clean, typed=None)
        case List():
            items = tuple(_clean(item, name, secrets, has_references) for item in node.items)
            return node if items == node.items else replace(node, items=items)
        case Table():
            leaves = {k: n.value for k, n in node.items.items() if isinstance(n, Leaf)}
            cleaned = [
                _clean(item, name_below(name, key, leaves), secrets, has_references)
                for key, item in node.items.items()
            ]
            fresh = dict(zip(secrets.keys(node.items), cleaned, strict=True))
            is_same = all(fresh.get(key) is item for key, item in node.items.items())
            return node if is_same else replace(node, items=fresh)
    return node
