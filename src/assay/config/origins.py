"""Origins of a tree, and its values as typed, for an OS process that reads a dump of the tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from assay.config.tree import Leaf, List, Node, Table
from assay.core.diagnostics import Origin
from assay.core.json_codec import from_plain, to_plain


def origins_of(node: Node) -> dict[str, Any]:
    """Return the origin of a node, of its keys and of all nodes below it; of a leaf as typed."""
    found: dict[str, Any] = {"at": to_plain(node.origin)}
    match node:
        case Table():
            found["keys"] = to_plain(node.key_origins)
            found["items"] = {key: origins_of(item) for key, item in node.items.items()}
        case List():
            found["items"] = [origins_of(item) for item in node.items]
        case Leaf():
            found["typed"] = node.typed
    return found


def with_origins(node: Node, origins: Mapping[str, Any]) -> Node:
    """Return an equal tree with origins from `origins_of`."""
    origin = from_plain(Origin, origins["at"])
    match node:
        case Table():
            items = origins["items"]
            return Table(
                {key: with_origins(item, items[key]) for key, item in node.items.items()},
                origin,
                {key: from_plain(Origin, at) for key, at in origins["keys"].items()},
            )
        case List():
            pairs = zip(node.items, origins["items"], strict=True)
            return List(tuple(with_origins(item, at) for item, at in pairs), origin)
        case Leaf():
            return replace(node, origin=origin, typed=origins.get("typed"))
