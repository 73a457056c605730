"""Names of older systems in a config: `alchemy.plugins.Seeding` is found in `assay.compat`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from assay.config.tree import KeyPath, Leaf, Table, walk
from assay.core.errors import nearest

WITH_KEYS = ("alchemy", "libai")
"""Systems whose keys are understood in any config; each has a module `keys` in `assay.compat`."""

PACKAGES: Mapping[str, str] = {
    "alchemy": "alchemy",
    "tensorboardX": "framework",
    "hiddenlayer": "framework",
    "thexp": "thexp",
    "flame": "flame",
    "injector": "flame",
    "libai": "libai",
    "oneflow": "libai",
    "flowvision": "libai",
}
"""Package that texts of an older system import -> the module of `assay.compat` with its names."""


def offer(error: ImportError) -> bool:
    """Make the package that was not found importable; return False if it is of no older system."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in PACKAGES:
        return False
    finders = importlib.import_module("assay.compat.importing")
    if package in finders.offered():
        return False
    finders.install(PACKAGES[package])
    return True


_IMPORT = re.compile(rf"^\s*(?:from|import)\s+({'|'.join(PACKAGES)})\b", re.MULTILINE)


def names_left_out(text: str) -> dict[str, Any]:
    """Return the objects that a Python text uses without an import, by name.

    The text must import an older system that is not installed; else nothing is returned.
    """
    packages = set(_IMPORT.findall(text))
    if not packages or any(PathFinder.find_spec(package) for package in packages):
        return {}
    pasted = importlib.import_module("assay.compat.pasted")
    found: dict[str, Any] = pasted.supply(pasted.missing_names(text))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderName:
    """Name of an older system: its target here, and how the same is said here.

    `keys` are arguments that set a key of the config: `{"seed": "seed"}`.
    """

    target: str
    instead: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmappedName:
    """Message and fix for a name of an older system that is not in its table."""

    message: str
    fix: str


def names_of(system: str) -> Mapping[str, OlderName]:
    """Return the names of one system, by their dotted path there."""
    found: Mapping[str, OlderName] = table_of(system, "NAMES")
    return found


def table_of(system: str, name: str) -> Any:
    """Return the table `name` of `assay.compat.SYSTEM`; empty where the module has none.

    From then on, modules of the user may import the system's packages.
    """
    # By name: `assay.compat` stands above this room, and only a config that names the system
    # needs its tables.
    importlib.import_module("assay.compat").install(system)
    return getattr(importlib.import_module(f"assay.compat.{system}"), name, {})


def keys_of(system: str) -> ModuleType:
    """Return the module with the keys of a system that has some."""
    return importlib.import_module(f"assay.compat.{system}.keys")


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


def system_of(target: str) -> str:
    """Return the older system that a target begins with, "" for none."""
    top = target.partition(".")[0].partition(":")[0]
    return PACKAGES.get(top, "") if top != target else ""


def unmapped(target: str) -> UnmappedName:
    """Return the error of a name that its system may have had, and that is not in the table."""
    system = system_of(target)
    names = names_of(system)
    last = target.replace(":", ".").rpartition(".")[2]
    by_last = {name.rpartition(".")[2]: name for name in names}
    near = nearest(target, list(names), cutoff=0.75) or [
        by_last[name] for name in nearest(last, list(by_last))
    ]
    fix = f"docs/compat/{system}.md lists the names that are known"
    if near:
        instead = names[near[0]].instead
        fix = f"did you mean `{near[0]}`?{f' Here: {instead}.' if instead else ''} {fix}"
    return UnmappedName(
        message=f"`{target}` of {system} has nothing here that stands for it", fix=fix
    )


def older_calls(root: Table) -> list[tuple[KeyPath, Table, str]]:
    """Return the calls of older systems in a config: path, table, target."""
    found: list[tuple[KeyPath, Table, str]] = []
    for path, node in walk(root):
        leaf = node.items.get("type") if isinstance(node, Table) else None
        target = leaf.value if isinstance(leaf, Leaf) else None
        if isinstance(node, Table) and isinstance(target, str) and system_of(target):
            found.append((path, node, target))
    return found
