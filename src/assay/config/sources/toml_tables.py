"""Tables of a TOML text that may still grow, and the keys that lead to them."""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.config.tree import KeyPath, List, Node, Table
from assay.core.diagnostics import Origin


@dataclass(slots=True, eq=False)
class TableBuilder:
    """Table that may still grow.

    Made by its own header (`is_headed`), by dotted keys under the header of `dotted_in`, or, with
    neither, by the header of a table inside of it.
    """

    path: KeyPath
    origin: Origin
    is_headed: bool = False
    dotted_in: TableBuilder | None = None
    items: dict[str, TableBuilder | TableArray | Node] = field(default_factory=dict)
    key_origins: dict[str, Origin] = field(default_factory=dict)

    def add(self, key: str, item: TableBuilder | TableArray | Node, key_origin: Origin) -> None:
        self.items[key] = item
        self.key_origins[key] = key_origin

    def grows_in(self, owner: TableBuilder) -> bool:
        """Return True if dotted keys in `owner` may add to this table."""
        return not self.is_headed and self.dotted_in in (None, owner)

    def frozen(self) -> Table:
        items = {
            key: item.frozen() if isinstance(item, TableBuilder | TableArray) else item
            for key, item in self.items.items()
        }
        return Table(items, self.origin, self.key_origins)


@dataclass(slots=True, eq=False)
class TableArray:
    """Array of tables that may still grow: `[[plugins]]`."""

    rows: list[TableBuilder]

    def frozen(self) -> List:
        return List(tuple(row.frozen() for row in self.rows), self.rows[0].origin)


@dataclass(frozen=True, slots=True)
class TomlKey:
    """One part of a dotted key."""

    name: str
    start: int
    end: int


class AbandonedError(Exception):
    """Statement that cannot be read any further; the mistake has been noted."""

    def __init__(self, *, resume: int) -> None:
        super().__init__(resume)
        self.resume = resume
