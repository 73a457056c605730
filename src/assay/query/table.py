"""Lists of many runs or groups as tables: text, JSON, CSV, HTML and arrays; `assay.runs`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError
from assay.core.facts import COSTS
from assay.core.formatting import name_some
from assay.core.terminal import cell_count, visible
from assay.core.text_table import TextColumn, align_columns, align_rows, csv_text
from assay.formats.json_codec import dumps
from assay.formats.run_file import UNSAVED
from assay.query.catalog import NEWEST_FIRST, Asked, Catalog, open_catalog
from assay.query.columns import (
    COLUMNS,
    DEFAULT_COLUMNS,
    MISSING,
    Column,
    plain_value,
)
from assay.query.groups import RunGroup, Spread, is_number
from assay.query.naming import ShownName, count_values, fit_names, shorten_ends
from assay.query.run import RunView
from assay.query.run_row import RunRow
from assay.query.selection import Selection
from assay.store import known_projects
from assay.store.cells import Cell, from_cell, to_cell
from assay.store.layout import Project

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ELASTIC = ("tag", "desc", "note", "reason", "labels", "project", "folder", "parent")
_LEAST_CELLS = 8
_SHOWN_ROWS = 40
_DEFAULT_METRICS = 3
_DEFAULT_KEYS = 2
_LOOKED_AT = 200


@dataclass(frozen=True, repr=False)
class RunTable:
    """Rows of runs under columns. `cells` are values for programs; `text` is for people."""

    columns: tuple[Column, ...]
    selection: Selection
    lists: tuple[Sequence[Any], ...]
    now_ns: int = field(default_factory=time.time_ns)

    @classmethod
    def of(cls, selection: Selection, columns: Sequence[Column]) -> RunTable:
        """Return selected runs under columns; a run that has just been removed is left out."""
        ids, *lists = selection.read([COLUMNS["id"], *columns])
        table = cls(tuple(columns), selection, tuple(lists))
        return table if None not in ids else table._pick([i for i, each in enumerate(ids) if each])

    @cached_property
    def rows(self) -> tuple[RunRow, ...]:
        """The runs as the index remembers them."""
        return tuple(row for row in self.selection.rows() if row is not None)

    def __len__(self) -> int:
        return len(self.selection)

    def __getitem__(self, i: int) -> RunView:
        """The run of a row, to look at."""
        return RunView(self.selection.at([i]).paths()[0])

    def __iter__(self) -> Iterator[RunView]:
        return (self[i] for i in range(len(self)))

    def with_columns(self, *names: str) -> RunTable:
        """The same runs under other columns; InputError for a column that nothing has."""
        catalog = self.selection.catalog
        columns = [catalog.known_column(name) for name in names]
        return RunTable.of(catalog.look_again(self.selection), columns)

    def without_column(self, name: str) -> RunTable:
        """The same runs with one column less."""
        kept = [i for i, column in enumerate(self.columns) if column.name != name]
        columns = tuple(self.columns[i] for i in kept)
        return replace(self, columns=columns, lists=tuple(self.lists[i] for i in kept))

    def group_by(self, *names: str) -> dict[Any, RunTable]:
        """Return tables of the runs that are alike in columns, by the value that they share.

        With several names the key is a tuple of values; None stands for a missing one. InputError
        for a column that nothing has.
        """
        if not names:
            raise InputError(
                "group_by needs the columns to group by.", fix='group_by("optimizer.lr")'
            )
        groups: dict[tuple[Cell, ...], list[int]] = {}
        for i, values in enumerate(zip(*self.with_columns(*names).exported, strict=True)):
            groups.setdefault(tuple(map(to_cell, values)), []).append(i)
        found = {}
        for cells, places in groups.items():
            key = tuple(_hashable(from_cell(cell)) for cell in cells)
            found[key if names[1:] else key[0]] = self._pick(places)
        if len(found) < len(groups):
            what = f"{' and '.join(names)} is a number in some runs and a boolean in others."
            raise InputError(what, fix="a dictionary takes 1 and True for one key")
        return found

    def _pick(self, places: Sequence[int]) -> RunTable:
        """Return the rows of these numbers as a table."""
        lists = tuple([values[i] for i in places] for values in self.lists)
        return replace(self, selection=self.selection.at(places), lists=lists)

    def to_numpy(self, *names: str) -> dict[str, NDArray[Any]]:
        """Return one array a column: float64 for numbers (nan where missing), else objects."""
        table = self.with_columns(*names) if names else self
        return {
            column.key: _array(values)
            for column, values in zip(table.columns, table.exported, strict=True)
        }

    def to_pandas(self, *names: str) -> Any:
        """Return a `pandas.DataFrame` indexed by run id; InputError without pandas.

        Integers stay integers: int64, Int64 where a run has none, objects beyond 64 bits.
        """
        try:
            # By name: nothing of it is needed to check or to install assay.
            pd: Any = import_module("pandas")
        except ImportError:
            raise InputError(
                "A DataFrame needs pandas.", fix="pip install pandas, or use to_numpy()"
            ) from None
        index = pd.Index(self.selection.ids(), name="id")
        table = self.with_columns(*names) if names else self
        columns = {
            column.key: _frame_column(pd, values)
            for column, values in zip(table.columns, table.exported, strict=True)
        }
        return pd.DataFrame(columns, index=index)

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        head = "".join(f"<th>{escape(visible(column.name))}</th>" for column in self.columns)
        body = "".join(map(self._html_row, self.shown_rows()))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _html_row(self, texts: Sequence[str]) -> str:
        cells = ""
        for is_right, text in zip(self._sides, texts, strict=True):
            side = "right" if is_right else "left"
            cells += f'<td style="text-align:{side}">{escape(text)}</td>'
        return f"<tr>{cells}</tr>"

    def __repr__(self) -> str:
        shown = self._pick(range(len(self))[:_SHOWN_ROWS])
        lines = shown.text()
        if more := len(self) - len(shown):
            lines.append(f"... and {more} more")
        return "\n".join(lines)

    @property
    def cells(self) -> list[dict[str, Any]]:
        """One dictionary a run, by column; times as ISO text, durations in seconds."""
        keys = [column.key for column in self.columns]
        lines = zip(*self.exported, strict=True) if keys else [()] * len(self)
        return [dict(zip(keys, line, strict=True)) for line in lines]

    @property
    def exported(self) -> list[list[Any]]:
        """The values of each column as plain data."""
        return [
            list(map(column.export, values))
            for column, values in zip(self.columns, self.lists, strict=True)
        ]

    def to_json(self) -> str:
        """A list of objects, one a line; what JSON lacks (nan, inf) as text."""
        lines = ",\n".join(dumps(cells) for cells in self.cells)
        return f"[\n{lines}\n]" if lines else "[]"

    def to_csv(self) -> str:
        """Return CSV with a head; an apostrophe is put before text that looks like a formula."""
        lines = [[name for column in self.columns for name in _csv_names(column)]]
        for cells in self.cells:
            lines.append([cell for column in self.columns for cell in _csv_cells(column, cells)])
        return csv_text(lines)

    def text(self, *, width: int | None = 80) -> list[str]:
        """Return aligned lines, the head first; long words are elided to fit `width`."""
        heads = [visible(column.name) for column in self.columns]
        texts = [[head, *cells] for head, cells in zip(heads, self._texts(), strict=True)]
        columns = map(_as_text, self.columns, texts, self._sides)
        return align_columns(list(columns), width)

    def shown_rows(self) -> list[tuple[str, ...]]:
        """Return the cells of each run as people read them."""
        return list(zip(*self._texts(), strict=True))

    def find_unsaved(self) -> dict[str, str]:
        """Return why a run kept no final weights, by id, of those that finished without."""
        facts = [COLUMNS[name] for name in ("id", "status", "reason")]
        return {
            run_id: reason
            for run_id, status, reason in zip(*self.selection.values(facts), strict=True)
            if status == "finished" and reason and reason.startswith(UNSAVED)
        }

    def find_changed(self) -> dict[str, str]:
        """Return which settings a resume changed and how, by id, of the runs with any."""
        found = zip(self.selection.ids(), self.selection.items("changed"), strict=True)
        return {
            run_id: "; ".join(f"{key} {text}" for key, text in changed.items())
            for run_id, changed in found
            if changed
        }

    @property
    def _sides(self) -> list[bool]:
        """For each column, whether its cells stand on the right."""
        return [
            _are_numbers(values) if column.to_right is None else column.to_right
            for column, values in zip(self.columns, self.lists, strict=True)
        ]

    def _texts(self) -> list[list[str]]:
        """Return the texts of each column."""
        return [
            list(map(visible, column.show_all(values, self.now_ns)))
            for column, values in zip(self.columns, self.lists, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class GroupTable:
    """Groups under columns, in order."""

    columns: tuple[Column, ...]
    groups: tuple[RunGroup, ...]

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def find_doubts(self) -> list[str]:
        """Return what to know before the means are believed, each with the groups of which."""
        found: dict[str, list[str]] = {}
        for group in self.groups:
            for each in group.warnings:
                found.setdefault(each, []).append(str(group.name))
        return [f"{name_some(names, 3, 'group')}: {each}" for each, names in found.items()]

    def to_json(self) -> str:
        """A list of objects, one a line."""
        lines = ",\n".join(dumps(self._plain(group)) for group in self.groups)
        return f"[\n{lines}\n]" if lines else "[]"

    def to_csv(self) -> str:
        """Return CSV with a head; after each column its standard deviation, where one has any."""
        has_spread = [
            any(isinstance(group.cells[i], Spread) for group in self.groups)
            for i in range(len(self.columns))
        ]
        head = ["name", "tag", "runs", "finished"]
        for name, is_spread in zip(self.names, has_spread, strict=True):
            head += [name, f"{name}.std"] if is_spread else [name]
        lines: list[list[Any]] = [head]
        for group in self.groups:
            cells: list[Any] = [str(group.name), group.tag, len(group.ids), group.finished]
            for cell, is_spread in zip(group.cells, has_spread, strict=True):
                cells += _csv_group_cells(cell, is_spread)
            lines.append(cells)
        return csv_text(lines)

    def text(self, *, width: int | None = None) -> list[str]:
        """Return aligned lines, the head first; names are shortened to fit `width`."""
        rows = self.shown_rows()
        if width is not None:
            rest = align_rows([row[1:] for row in rows])
            names = self._fit_names(max(_LEAST_CELLS, width - 2 - max(map(cell_count, rest))))
            rows = [rows[0], *([name, *row[1:]] for name, row in zip(names, rows[1:], strict=True))]
        return align_rows(rows, to_right=range(1, len(rows[0])))

    def shown_rows(self) -> list[list[str]]:
        """Return head and groups as people read them; `2 of 3` runs: one did not finish."""
        now_ns = time.time_ns()
        columns = [
            _show_cells(column, [group.cells[i] for group in self.groups], now_ns)
            for i, column in enumerate(self.columns)
        ]
        texts = zip(*columns, strict=True) if columns else [()] * len(self)
        rows = zip(self._fit_names(None), self.groups, texts, strict=True)
        head = ["name", "runs", *map(visible, self.names)]
        return [head, *([name, _count_runs(group), *row] for name, group, row in rows)]

    def _fit_names(self, room: int | None) -> list[str]:
        names = [self._short_name(group) for group in self.groups]
        texts = map(str, names) if room is None else fit_names(names, room)
        return [visible(text) or "-" for text in texts]

    def _short_name(self, group: RunGroup) -> ShownName:
        """Return the name of a group without what its columns say."""
        name = group.name
        shown = {end for column in self.names for end in shorten_ends(column)}
        settings = tuple(pair for pair in name.settings if pair[0] not in shown)
        tag = name.tag or ("" if settings or name.id else group.tag)
        return replace(name, settings=settings, tag=tag)

    def _plain(self, group: RunGroup) -> dict[str, Any]:
        (key,) = group.key
        return {
            "name": str(group.name),
            "tag": group.tag,
            "config": key,
            "runs": list(reversed(group.ids)),
            "finished": group.finished,
            **({"warnings": list(group.warnings)} if group.warnings else {}),
            **dict(zip(self.names, map(plain_value, group.cells), strict=True)),
        }


def _count_runs(group: RunGroup) -> str:
    total = len(group.ids)
    return str(total) if group.finished == total else f"{group.finished} of {total}"


def _show_cells(column: Column, cells: Sequence[Any], now_ns: int) -> list[str]:
    """Return the cells of groups as people read them: a mean with its deviation, or a value."""
    is_mean = [isinstance(cell, Spread) for cell in cells]
    values = [
        MISSING if cell is None or mean else cell for cell, mean in zip(cells, is_mean, strict=True)
    ]
    texts = column.show_all(values, now_ns)
    return [
        str(cell) if mean else visible(text)
        for cell, mean, text in zip(cells, is_mean, texts, strict=True)
    ]


def _csv_group_cells(cell: Any, has_spread: bool) -> list[Any]:
    if not has_spread:
        return [_csv_cell(plain_value(cell))]
    if not isinstance(cell, Spread):
        return [cell, None]
    return [cell.mean, cell.std]


def _as_text(column: Column, texts: Sequence[str], to_right: bool) -> TextColumn:
    """Return a column as it is printed: words give up width first, the best value last."""
    least = None
    if column.name in _ELASTIC:
        least = _LEAST_CELLS
    elif column.name == "best":
        numbers = (cell_count(text.rpartition(" ")[2]) for text in texts)
        least = max(_LEAST_CELLS, *numbers)
    return TextColumn(texts, to_right, least, int(column.name == "best"), column.shorten)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Return whether there are values, and all of them are numbers."""
    known = [value for value in values if value is not None and value is not MISSING]
    return bool(known) and all(map(is_number, known))


def _array(values: list[Any]) -> NDArray[Any]:
    import numpy as np  # here: a list of runs in a terminal needs none

    if not all(value is None or is_number(value) for value in values):
        return _objects(values)
    known = [float("nan") if value is None else value for value in values]
    try:
        return np.array(known, dtype=np.float64)
    except OverflowError:  # an integer above the largest float
        return _objects(values)


def _objects(values: list[Any]) -> NDArray[Any]:
    import numpy as np

    objects: NDArray[Any] = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _frame_column(pd: Any, values: list[Any]) -> Any:
    """Return the values of one column of a data frame; those of integers stay integers."""
    import numpy as np

    known = [value for value in values if value is not None]
    if not known or not all(is_number(value) and isinstance(value, int) for value in known):
        return _array(values)
    if not all(-(1 << 63) <= value < 1 << 63 for value in known):
        return _objects(values)
    return np.array(values, np.int64) if values == known else pd.array(values, dtype="Int64")


def _hashable(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return math.nan  # a key equals itself alone
    return value if value is None or isinstance(value, str | int | float) else dumps(value)


def _csv_names(column: Column) -> tuple[str, ...]:
    return ("best_metric", "best") if column.name == "best" else (column.key,)


def _csv_cells(column: Column, cells: Mapping[str, Any]) -> tuple[Any, ...]:
    value = cells[column.key]
    if column.name == "best":
        return (value["metric"], value["value"]) if value else ("", "")
    if column.name == "labels":
        return (", ".join(value),)
    return (_csv_cell(value),)


def _csv_cell(value: Any) -> Any:
    """Return a value as CSV has it; booleans and lists as in JSON."""
    return dumps(value) if isinstance(value, bool | list | dict) else value


def list_runs(
    projects: Project | Sequence[Project],
    *,
    where: str = "",
    grep: str = "",
    tests: bool = False,
    archived: bool = False,
    recent: timedelta | None = None,
    sort: str = NEWEST_FIRST,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    limit: int | None = None,
) -> RunTable:
    """Return the runs of one project or several. `sort` is a column, with - for largest first.

    `where` is an expression, `grep` words that must stand in what was said about a run, `recent`
    the age of the oldest. Test runs and archived ones are listed only on request, or when `where`
    asks for their kind or label. InputError for names that no run has.
    """
    since_ns = 0
    if recent is not None:
        since_ns = time.time_ns() - round(recent.total_seconds() * 1e9)
    asked = Asked(
        where=where,
        grep=grep,
        sort=(sort,),
        columns=tuple(columns),
        tests=tests,
        archived=archived,
        since_ns=since_ns,
        limit=limit,
    )
    return make_table(open_catalog(projects, texts=bool(grep)), asked)


def make_table(catalog: Catalog, asked: Asked) -> RunTable:
    """Return the runs that are asked for as a table; InputError for names that no run has."""
    columns = tuple(catalog.known_column(name) for name in asked.columns)
    return RunTable.of(catalog.part(asked), columns)


def make_group_table(catalog: Catalog, asked: Asked) -> GroupTable:
    """Return groups of the runs that are asked for as a table.

    Without columns these are the `default_columns`. InputError for names that no run has.
    """
    selection = catalog.select(asked)
    names = asked.columns or default_columns(selection)
    columns = tuple(catalog.known_column(name) for name in names)
    grouping = catalog.group(selection, asked)
    return GroupTable(columns, tuple(grouping.groups(columns, asked.offset, asked.limit)))


def default_columns(selection: Selection) -> list[str]:
    """Return the columns of a list of groups: the best of what the runs watch, as valid/acc.max.

    Without these: the first three metrics that the runs have, of splits before those of the
    training, costs last.
    """
    written = [row.written for row in selection.rows() if row is not None]
    watched = dict.fromkeys((each.best_metric, each.best_mode) for each in written)
    metrics = selection.metrics()
    names = [f"{metric}.{mode}" for metric, mode in watched if metric in metrics]
    metrics.sort(
        key=lambda name: (name.startswith(COSTS), name.startswith("train/"), name == "epoch")
    )
    return names or metrics[:_DEFAULT_METRICS]


def choose_columns(selection: Selection, *, grouped: bool) -> list[str]:
    """Return the columns of runs or groups that nobody has chosen any for.

    Those are results that the selection has, then the keys that differ most. The newest runs of a
    large selection speak for it.
    """
    part = selection.part(0, _LOOKED_AT)
    results = default_columns(part)
    has_best = any(row is not None and row.written.best_metric for row in part.rows())
    counts = count_values(*part.configs())
    keys = sorted(counts, key=lambda key: (key == "seed", -counts[key], key))
    shown = [key for key in keys if not (grouped and key == "seed")][:_DEFAULT_KEYS]
    names = map(selection.catalog.names().of_key, shown)
    return [*(["best"] if has_best and not grouped else results), *names]


def differing_keys(selection: Selection, without: Sequence[str] = ()) -> list[str]:
    """Return names of the config keys that differ between the runs, sorted, without tag and desc.

    `without` has keys, or patterns of them, that are left out.
    """
    keys = sorted(count_values(*selection.configs()))
    kept = (key for key in keys if not any(fnmatchcase(key, each) for each in without))
    return list(map(selection.catalog.names().of_key, kept))


def runs(
    where: str = "",
    *,
    grep: str = "",
    columns: Iterable[str] = DEFAULT_COLUMNS,
    sort: str = NEWEST_FIRST,
    limit: int | None = None,
    recent: timedelta | None = None,
    tests: bool = False,
    archived: bool = False,
    all_projects: bool = False,
    project: Project | str | os.PathLike[str] | None = None,
) -> RunTable:
    """Return the runs that fulfil an expression: `assay.runs("valid/acc > 0.9")`.

    Its items are runs to look at (`run.config`, `run.metric("train/loss")`, `run.checkpoints`), its
    cells come out by `to_numpy`, `to_pandas`, `to_csv` and `to_json`. `grep`: words in tag,
    description, notes, labels or README. `recent`: only runs begun within this time. InputError for
    an expression or a column that no run understands.
    """
    return list_runs(
        _searched_projects(project, all_projects=all_projects),
        where=where,
        grep=grep,
        tests=tests,
        archived=archived,
        recent=recent,
        sort=sort,
        columns=columns,
        limit=limit,
    )


def _searched_projects(
    project: Project | str | os.PathLike[str] | None, *, all_projects: bool
) -> list[Project]:
    """Return the projects whose runs are listed."""
    if all_projects:
        return known_projects.all_projects()
    if project is None:
        return known_projects.projects_here()
    if isinstance(project, Project):
        return [project]
    return [known_projects.project_here(Path(project))]
