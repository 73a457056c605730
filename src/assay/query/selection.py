"""Selected runs in order: their cells, rows, configs and metrics at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from assay.query.columns import COLUMNS, MISSING, Column
from assay.query.expression import KnownNames
from assay.query.run_row import RunRow
from assay.store.conditions import Field
from assay.store.index import Index, Moment
from assay.store.index_rows import Kind

Place = tuple[Index, str]
"""A run: the index of its project, and the name of its folder."""


class RunSource(Protocol):
    """Source of the names that selected runs can be asked for, as a catalog is."""

    def names(self) -> KnownNames: ...

    def known_column(self, name: str, *, where: str = "") -> Column: ...

    def look_again(self, selection: Selection) -> Selection: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Runs in the order that was asked for, as they are at one moment."""

    catalog: RunSource
    places: Sequence[Place]
    moments: Mapping[Index, Moment]

    def __len__(self) -> int:
        return len(self.places)

    def part(self, offset: int, limit: int | None) -> Selection:
        """Return `limit` of the runs from `offset` on."""
        end = None if limit is None else offset + limit
        return Selection(self.catalog, self.places[offset:end], self.moments)

    def at(self, numbers: Iterable[int]) -> Selection:
        """Return the runs of these numbers."""
        return Selection(self.catalog, [self.places[i] for i in numbers], self.moments)

    def values(self, columns: Sequence[Column], *, missing: Any = None) -> list[list[Any]]:
        """Return for each column the cells of the runs in order.

        `missing` stands for a key or result that a run does not have; for all else that is None.
        """
        fields = [column.field for column in columns if column.field is not None]
        by_index = {
            index: iter(index.values(folders, fields, self.moments[index]))
            for index, folders in self._folders().items()
        }
        lists: list[list[Any]] = []
        for column in columns:
            nothing = missing if column.is_setting else None
            if column.field is None:
                lists.append([nothing] * len(self.places))
                continue
            cells = {index: next(found) for index, found in by_index.items()}
            lists.append([cells[index].get(folder, nothing) for index, folder in self.places])
        return lists

    def read(self, columns: Sequence[Column]) -> list[list[Any]]:
        """Return for each column what a table has of the runs, in order; MISSING for nothing."""
        needed = [
            [column, *(Column(name, Field("run", name)) for name in column.more)]
            for column in columns
        ]
        cells = iter(self.values([each for group in needed for each in group], missing=MISSING))
        lists = []
        for column, group in zip(columns, needed, strict=True):
            inputs = [next(cells) for _ in group]
            read = column.read
            lists.append(inputs[0] if read is None else list(map(read, *inputs)))
        return lists

    def paths(self) -> list[Path]:
        """Return the folders of the runs in order."""
        return [index.project.runs_dir / folder for index, folder in self.places]

    def rows(self) -> list[RunRow | None]:
        """Return the runs in order, None for one that is gone by now."""
        rows = {index: index.rows(folders) for index, folders in self._folders().items()}
        found: list[RunRow | None] = []
        for index, folder in self.places:
            row = rows[index].get(folder)
            now_ns = self.moments[index].now_ns
            found.append(None if row is None else RunRow(index, row, now_ns))
        return found

    def items(self, kind: Kind) -> list[dict[str, Any]]:
        """Return everything of a kind that the runs have, such as their configs by dotted key."""
        items = {
            index: index.all_items(kind, folders) for index, folders in self._folders().items()
        }
        return [items[index][folder] for index, folder in self.places]

    def metrics(self) -> list[str]:
        """Return the metrics that any of the runs has, in the order of the alphabet."""
        folders = self._folders().items()
        return unite_names(index.metric_names(names) for index, names in folders)

    def configs(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the config of each run with the defaults that it took, and these alone."""
        defaults = self.items("default")
        written = self.items("config")
        return [{**taken, **own} for own, taken in zip(written, defaults, strict=True)], defaults

    def ids(self) -> list[str]:
        """Return the ids of the runs in order."""
        return [str(each) for each in self.values([COLUMNS["id"]])[0] if each is not None]

    def _folders(self) -> dict[Index, list[str]]:
        folders: dict[Index, list[str]] = {}
        for index, folder in self.places:
            folders.setdefault(index, []).append(folder)
        return folders


class LazyColumns(Mapping[str, Sequence[Any]]):
    """Values of selected runs by name of a column, read each time one is asked for."""

    def __init__(self, selection: Selection, names: Sequence[str]) -> None:
        self.selection = selection
        self._names = names

    def __getitem__(self, name: str) -> Sequence[Any]:
        (values,) = self.selection.values([self.selection.catalog.known_column(name)])
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def unite_names(names: Iterable[Iterable[str]]) -> list[str]:
    """Return names of several lists, each once."""
    return list(dict.fromkeys(name for each in names for name in each))
