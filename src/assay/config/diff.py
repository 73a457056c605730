"""Difference of two configs, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.config.tree import KeyPath, Leaf, List, Node, Table, dotted, same


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """Key whose value differs; None stands for a missing one."""

    key: str
    before: Node | None
    after: Node | None


def changed_keys(a: Table, b: Table) -> list[KeyChange]:
    """Return the keys on which `a` and `b` differ, as deep as both have them, in their order.

    Lists of plain values count as one value; lists of tables or calls are compared item by item.
    """
    return list(_changes(a, b, ()))


def _changes(a: Node | None, b: Node | None, path: KeyPath) -> Iterator[KeyChange]:
    match a, b:
        case Table(), Table():
            for key in dict.fromkeys([*a.items, *b.items]):
                yield from _changes(a.items.get(key), b.items.get(key), (*path, key))
        case List(), List() if not (_is_flat(a) and _is_flat(b)):
            for i in range(max(len(a.items), len(b.items))):
                before = a.items[i] if i < len(a.items) else None
                after = b.items[i] if i < len(b.items) else None
                yield from _changes(before, after, (*path, i))
        case _ if a is None or b is None or not same(a, b):
            yield KeyChange(key=dotted(path), before=a, after=b)


def _is_flat(node: List) -> bool:
    return all(isinstance(item, Leaf) for item in node.items)
