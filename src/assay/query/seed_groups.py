"""Runs that differ in nothing but their seed, as one line each: means and standard deviations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from assay.core.errors import InputError, did_you_mean
from assay.core.formatting import number
from assay.core.json_codec import dumps
from assay.core.terminal import elided, visible
from assay.query.columns import Column
from assay.query.csv_text import csv_text
from assay.query.found_runs import FoundRuns
from assay.query.run_row import RunRow
from assay.store.cells import in_order

_TAG_CELLS = 24
_LISTED = 20
_GROUP_FACTS = ("tag", "runs")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation (n - 1) of several runs; `std` is nan for a single run."""

    mean: float
    std: float
    count: int

    def __str__(self) -> str:
        if self.std != self.std:
            return number(self.mean)
        # As many digits as the deviation is known to: its first two.
        digits = max(0, 1 - math.floor(math.log10(self.std))) if 0 < self.std < math.inf else 4
        if digits > 8 or not math.isfinite(self.mean) or abs(self.mean) >= 1e9:
            return f"{number(self.mean)} ± {self.std:.2g}"
        return f"{self.mean:.{digits}f} ± {self.std:.{digits}f}"


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs of one config.

    `cells`: by column a Spread of the numbers of the runs that finished, the value all runs share,
    or None.
    """

    key: str
    rows: tuple[RunRow, ...]
    cells: dict[str, Any]

    @property
    def tag(self) -> str:
        """The tag of the newest."""
        return self.rows[-1].tag

    @property
    def finished(self) -> int:
        """Number of runs that finished."""
        return sum(row.status == "finished" for row in self.rows)


@dataclass(frozen=True, slots=True)
class GroupTable:
    """Groups under columns; the newest first."""

    names: tuple[str, ...]
    groups: tuple[SeedGroup, ...]

    def __len__(self) -> int:
        return len(self.groups)

    def to_json(self) -> str:
        """A list of objects, one a line."""
        lines = ",\n".join(dumps(_plain(group)) for group in self.groups)
        return f"[\n{lines}\n]" if lines else "[]"

    def to_csv(self) -> str:
        """Return CSV with a head; after each column its standard deviation, where one has any."""
        spread_names = {
            name
            for name in self.names
            if any(isinstance(group.cells[name], Spread) for group in self.groups)
        }
        head = ["tag", "runs", "finished"]
        for name in self.names:
            head += [name, f"{name}.std"] if name in spread_names else [name]
        lines: list[list[Any]] = [head]
        for group in self.groups:
            cells = [group.tag, len(group.rows), group.finished]
            for name in self.names:
                cells += _csv_cells(group.cells[name], name in spread_names)
            lines.append(cells)
        return csv_text(lines)

    def text(self) -> list[str]:
        """Aligned lines, the head first; `2 of 3` runs: one of three did not finish."""
        lines = [["tag", "runs", *map(visible, self.names)]]
        lines += [self._texts(group) for group in self.groups]
        tag_width, *widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = []
        for tag, *cells in lines:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            texts.append("  ".join([tag.ljust(tag_width), *padded]).rstrip())
        return texts

    def _texts(self, group: SeedGroup) -> list[str]:
        tag = elided(visible(group.tag) or "-", _TAG_CELLS)
        total = len(group.rows)
        runs = str(total) if group.finished == total else f"{group.finished} of {total}"
        return [tag, runs, *(_shown(group.cells[name]) for name in self.names)]


def grouped(
    found: FoundRuns,
    columns: Iterable[str] = (),
    sort: str = "",
    *,
    ignored: Collection[str] = (),
) -> GroupTable:
    """Return the runs grouped by config without the seed; a run without a config stays alone.

    Numbers are those of the runs that finished: a failed repeat would pull the mean of the others.
    Where none has finished, those of all runs, since each is all that there is.

    `columns` as in a list; left out: the best value of each run, or all metrics when none has one.
    `sort` is a column, `tag` or `runs`, with - for largest first; left out: the newest first.
    `ignored` are keys of the config, or patterns such as `*.fold`, in which runs of a group may
    differ beside the seed. InputError for a column or key that no run has.
    """
    names = list(columns) or default_columns(found)
    by = sort.removeprefix("-")
    needed = [*names]
    if by and by not in (*names, *_GROUP_FACTS):
        needed.append(by)
    chosen = [_bests() if name == "best" else found.column(name) for name in needed]
    settings = set(found.names().config) - set(found.names().metrics)
    groups = [
        SeedGroup(key, tuple(rows), _cells(rows, chosen, settings))
        for key, rows in _rows_by_config(found, ignored).items()
    ]
    groups.sort(key=lambda group: group.rows[-1].written.created_ns, reverse=True)
    if by:
        sorted_by = next((column for column in chosen if column.name == by), None)
        pairs = [(_sort_value(group, by, sorted_by), group) for group in groups]
        groups = in_order(pairs, descending=sort.startswith("-"))
    return GroupTable(tuple(column.name for column in chosen[: len(names)]), tuple(groups))


def _rows_by_config(found: FoundRuns, ignored: Collection[str]) -> dict[str, list[RunRow]]:
    """Return the runs by the hash of their config without the seed, else by their folder.

    With `ignored` keys or patterns, by the values of all other keys.
    """
    known = found.names().config if ignored else []
    left_out = {"seed"}
    for key in ignored:
        matching = [name for name in known if fnmatchcase(name, key)]
        if not matching:
            fix = did_you_mean(key, known) or f"keys are {', '.join(known[:_LISTED])}"
            raise InputError(f"No run has a key `{key}` in its config.", fix=fix)
        left_out.update(matching)
    rows_by_key: dict[str, list[RunRow]] = {}
    configs: dict[tuple[int, str], str] = {}
    for index in found.indexes if ignored else ():
        folders = [row.written.folder for row in found.rows if row.index is index]
        copies = index.all_items("copy", folders)
        for folder, config in index.all_items("config", folders).items():
            sources = copies[folder]
            kept = {
                key: config[key]
                for key in sorted(config)
                if not left_out.intersection((key, sources.get(key)))
            }
            configs[id(index), folder] = dumps(kept)
    for row in found.rows:
        written = row.written
        alike = configs.get((id(row.index), written.folder), written.seedless_hash)
        rows_by_key.setdefault(alike or written.folder, []).append(row)
    return rows_by_key


def _cells(
    rows: Sequence[RunRow], columns: Sequence[Column], settings: Collection[str]
) -> dict[str, Any]:
    counted = _finished(rows)
    cells = {}
    for column in columns:
        is_setting = column.name.removeprefix("config.") in settings
        cells[column.name] = together([column.get(row) for row in counted], is_setting=is_setting)
    return cells


def _sort_value(group: SeedGroup, by: str, column: Column | None) -> Any:
    if column is None:
        return {"tag": group.tag, "runs": len(group.rows)}[by]
    return group_order([column.sort_value(row) for row in reversed(_finished(group.rows))])


def group_order(values: Sequence[Any]) -> Any:
    """Return what a group is sorted by: the mean of its numbers, else its newest value.

    `values` come with that of the newest run first, None where a run has none.
    """
    known = [value for value in values if value is not None]
    cell = together(known)
    if isinstance(cell, Spread):
        return cell.mean
    return known[0] if known else None


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation.

    >>> str(spread([0.981, 0.985, 0.983])), str(spread([1.0]))
    ('0.9830 ± 0.0020', '1')
    """
    count = len(values)
    mean = math.fsum(values) / count if all(map(math.isfinite, values)) else sum(values) / count
    if count == 1 or not math.isfinite(mean):
        return Spread(mean, math.nan, count)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Spread(mean, math.sqrt(squares / (count - 1)), count)


def default_columns(found: FoundRuns) -> list[str]:
    """Return the columns of a list of groups: `best`, else the first three metrics."""
    if any(row.written.best_value is not None for row in found.rows):
        return ["best"]
    return found.names().metrics[:3] if found.rows else []  # type: ignore[return-value]


def _finished(rows: Sequence[RunRow]) -> Sequence[RunRow]:
    return [row for row in rows if row.status == "finished"] or rows


def _bests() -> Column:
    return Column("best", lambda row: row.written.best_value)


def together(values: Sequence[Any], *, is_setting: bool = False) -> Any:
    """Return the spread of measured numbers, or the value of a setting that all runs share."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if is_setting and all(value == known[0] for value in known):
        return known[0]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return spread([float(value) for value in known])
    first = known[0]
    return first if all(value == first for value in known) else None


def _csv_cells(cell: Any, has_spread: bool) -> list[Any]:
    if not has_spread:
        return [cell if cell is None or isinstance(cell, str | int | float) else dumps(cell)]
    if not isinstance(cell, Spread):
        return [cell, None]
    return [cell.mean, cell.std if cell.count > 1 else None]


def _shown(cell: Any) -> str:
    match cell:
        case None:
            return "-"
        case str() | Spread():
            return visible(str(cell))
        case float():
            return number(cell)
        case _:
            return visible(dumps(cell))


def _plain(group: SeedGroup) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, cell in group.cells.items():
        if isinstance(cell, Spread):
            cell = {**asdict(cell), "std": cell.std if cell.count > 1 else None}
        cells[name] = cell
    return {
        "tag": group.tag,
        "config": group.key,
        "runs": [row.id for row in group.rows],
        "finished": group.finished,
        **cells,
    }
