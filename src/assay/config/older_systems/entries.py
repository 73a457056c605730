"""Entries of the tables: a name or a key of another system, and what stands for it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from assay.config.tree import Node


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Key `old` of another system for `new` here.

    `value` converts, where the alias does more than rename; it returns None to set nothing.
    """

    old: str
    new: str
    note: str
    value: Callable[[Node], Node | None] | None = None

    def converted(self, node: Node) -> Node | None:
        """Return the value of the key here; None to set nothing."""
        return node if self.value is None else self.value(node)
