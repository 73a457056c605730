"""Lookup of the targets of older systems: `alchemy.plugins.Seeding` is found in `assay.compat`."""

from __future__ import annotations

from collections.abc import Mapping

from assay.config.older_systems.entries import OlderName
from assay.config.older_systems.importing import install
from assay.config.older_systems.tables import system_of, table_of
from assay.config.tree import KeyPath, Leaf, Table, walk


def names_of(system: str) -> Mapping[str, OlderName]:
    """Return the names of one system, by their dotted path there.

    From then on, modules of the user may import the system's packages.
    """
    install(system)
    return table_of(system)


def older_name(target: str) -> OlderName | None:
    """Return the entry of a target; None for one that no older system has.

    >>> older_name("alchemy.plugins.Seeding").target
    'assay.compat.alchemy.plugins.Seeding'
    >>> older_name("oneflow.nn.Linear").target
    'torch.nn.Linear'
    """
    system = system_of(target)
    if not system:
        return None
    names = names_of(system)
    dotted = target.replace(":", ".")
    if dotted in names:
        return names[dotted]
    module, _, name = dotted.rpartition(".")
    place = names[module].target if module in names else ""
    if not place.startswith("torch."):
        return None
    return OlderName(target=f"{place}.{name}", instead=f"`{place}.{name}`")


def older_calls(root: Table) -> list[tuple[KeyPath, Table, str]]:
    """Return the calls of older systems in a config: path, table, target."""
    found: list[tuple[KeyPath, Table, str]] = []
    for path, node in walk(root):
        leaf = node.items.get("type") if isinstance(node, Table) else None
        target = leaf.value if isinstance(leaf, Leaf) else None
        if isinstance(node, Table) and isinstance(target, str) and system_of(target):
            found.append((path, node, target))
    return found
