"""Table of many runs: columns, sorting, and output as text, JSON, CSV and HTML."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError, did_you_mean
from assay.core.event_log import Edit
from assay.core.json_codec import dumps
from assay.core.run_file import UNSAVED, Summary
from assay.core.terminal import cell_count, elided, for_terminal, visible
from assay.query.formatting import age, duration, number
from assay.query.status import RunState, seconds_of, state_of
from assay.store.conditions import STATISTICS
from assay.store.index import Index
from assay.store.index_database import index_file
from assay.store.index_rows import IndexRow
from assay.store.layout import Project
from assay.store.refresh_index import lost_rows, open_index

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.query.expression import KnownNames
    from assay.query.run import RunView
    from assay.store.conditions import Condition

ARCHIVED = "archived"
"""The label of runs that a list leaves out."""

DEFAULT_COLUMNS = ("status", "tag", "id", "best", "duration", "age")
DEFAULT_SORT = "-created"
_ELASTIC = ("tag", "desc", "note", "reason", "labels", "project", "folder", "parent")
_LEAST_CELLS = 8
_GAP = "  "


class RunRow:
    """One run of a list: what its folder wrote, later edits, and what is derived."""

    __slots__ = ("_state", "index", "is_lost", "now_ns", "written")

    def __init__(
        self, index: Index, written: IndexRow, now_ns: int, *, is_lost: bool = False
    ) -> None:
        self.index = index
        self.written = written
        self.now_ns = now_ns
        self.is_lost = is_lost
        self._state: RunState | None = None

    @property
    def project(self) -> Project:
        return self.index.project

    @property
    def id(self) -> str:
        return self.written.id

    @property
    def path(self) -> Path:
        return self.project.runs_dir / self.written.folder

    @property
    def edits(self) -> list[Edit]:
        return self.written.edits

    @property
    def tag(self) -> str:
        return self.written.tag

    @property
    def labels(self) -> list[str]:
        if not self.written.edits_json:  # thousands of runs have none
            return []
        now: dict[str, bool] = {}
        for edit in self.edits:
            if edit.what == "label":
                now[edit.key] = bool(edit.new)
        return [label for label, has in now.items() if has]

    @property
    def note(self) -> str | None:
        """The newest note."""
        return next((str(edit.new) for edit in reversed(self.edits) if edit.what == "note"), None)

    @property
    def status(self) -> str:
        """As for one run; `damaged` when its folder cannot be read, `lost` when its project is not
        there any more."""
        if self.is_lost:
            return "lost"
        written = self.written.status
        return self._open_state().status if written == "running" else written or "damaged"

    @property
    def is_unsaved(self) -> bool:
        """True when the run came to its own end, but could not keep its final weights; `reason`
        says why."""
        return self.written.status == "finished" and self.written.reason.startswith(UNSAVED)

    @property
    def duration_s(self) -> float | None:
        written = self.written
        if written.status == "running" and not self.is_lost:
            return seconds_of(written.seconds, written.started_ns, self._open_state(), self.now_ns)
        return written.seconds if written.status else None

    @property
    def summaries(self) -> dict[str, Summary]:
        return self.written.summaries

    @property
    def values(self) -> dict[str, Any]:
        """Results that are no curves, with later corrections."""
        values: dict[str, Any] = json.loads(self.written.values_json)
        return values

    def _open_state(self) -> RunState:
        if self._state is None:
            self._state = state_of(self.path, "running", self.written.lease)
        return self._state


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what a run has there (None: nothing), and how that reads."""

    name: str
    get: Callable[[RunRow], Any]
    show: Callable[[Any, int], str] = lambda value, now_ns: _shown(value)
    to_right: bool = False
    shorten: Callable[[str, int], str] = elided
    sort_key: Callable[[Any], Any] | None = None

    @property
    def key(self) -> str:
        """The name that programs get: with the unit, where there is one."""
        return {"duration": "duration_s", "age": "created"}.get(self.name, self.name)


def _best(row: RunRow) -> dict[str, Any] | None:
    if row.written.best_value is None:
        return None
    best = row.written
    return {
        "metric": best.best_metric,
        "mode": best.best_mode,
        "value": best.best_value,
        "step": best.best_step,
    }


COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("status", lambda row: row.status),
        Column("tag", lambda row: row.tag),
        Column("id", lambda row: row.id),
        Column(
            "best",
            _best,
            lambda best, now_ns: f"{best['metric']} {number(best['value'])}",
            shorten=lambda text, limit: _with_number(text, limit),
            sort_key=lambda best: best["value"],
        ),
        Column(
            "duration", lambda row: row.duration_s, lambda s, now_ns: duration(s), to_right=True
        ),
        # The age is a moment, so that it reads the same tomorrow; shown is how long ago that was.
        Column(
            "age", lambda row: row.written.created_ns, age, to_right=True, sort_key=lambda ns: -ns
        ),
        Column(
            "created",
            lambda row: row.written.created_ns,
            lambda ns, now_ns: f"{_local(ns):%Y-%m-%d %H:%M}",
        ),
        Column("kind", lambda row: row.written.kind),
        Column("step", lambda row: row.written.step, to_right=True),
        Column("attempts", lambda row: row.written.attempts, to_right=True),
        Column("labels", lambda row: row.labels, lambda labels, now_ns: _shown(", ".join(labels))),
        Column("note", lambda row: row.note),
        Column("reason", lambda row: row.written.error or row.written.reason or None),
        Column("parent", lambda row: row.written.parent or None),
        Column("sweep", lambda row: row.written.sweep or None),
        Column("point", lambda row: row.written.point or None),
        Column("config", lambda row: row.written.config_hash[:16] or None),
        Column("project", lambda row: str(row.project.root)),
        Column("folder", lambda row: str(row.path)),
    )
}
"""Columns by name; any metric (`valid/acc`, `valid/acc.max`) and any result is a column as well."""


_SHOWN_ROWS = 40


@dataclass(frozen=True, repr=False)
class RunTable:
    """Rows of runs under columns. `cells` are values for programs; `text` is for people."""

    columns: tuple[Column, ...]
    rows: tuple[RunRow, ...]
    now_ns: int = field(default_factory=time.time_ns)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> RunView:
        """The run of a row, to look at."""
        from assay.query.run import RunView  # here: a list of runs opens none

        return RunView(self.rows[i].path)

    def __iter__(self) -> Iterator[RunView]:
        return (self[i] for i in range(len(self)))

    def with_columns(self, *names: str) -> RunTable:
        """The same runs under other columns; InputError for a column that nothing has."""
        found = FoundRuns.of(self.rows)
        return RunTable(tuple(found.column(name) for name in names), self.rows, self.now_ns)

    def group_by(self, *names: str) -> dict[Any, RunTable]:
        """Return tables of the runs that are alike in columns, by the value that they share.

        With several names the key is a tuple of values; None stands for a missing one. InputError
        for a column that nothing has.
        """
        if not names:
            raise InputError(
                "group_by needs the columns to group by.", fix='group_by("optimizer.lr")'
            )
        columns = self.with_columns(*names).columns
        groups: dict[Any, list[RunRow]] = {}
        for row in self.rows:
            values = tuple(_hashable(column.get(row)) for column in columns)
            groups.setdefault(values if names[1:] else values[0], []).append(row)
        return {key: replace(self, rows=tuple(rows)) for key, rows in groups.items()}

    def to_numpy(self, *names: str) -> dict[str, NDArray[Any]]:
        """Return one array a column: float64 for numbers (nan where missing), else objects."""
        import numpy as np

        table = self.with_columns(*names) if names else self
        return {
            column.key: _array(np, [cells[column.key] for cells in table.cells])
            for column in table.columns
        }

    def to_pandas(self, *names: str) -> Any:
        """Return a `pandas.DataFrame` indexed by run id; InputError without pandas."""
        try:
            pd: Any = import_module(
                "pandas"
            )  # nothing of it is needed to check or to install assay
        except ImportError:
            raise InputError(
                "A DataFrame needs pandas.", fix="pip install pandas, or use to_numpy()"
            ) from None
        index = pd.Index([row.id for row in self.rows], name="id")
        return pd.DataFrame(self.to_numpy(*names), index=index)

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        head = "".join(f"<th>{escape(visible(column.name))}</th>" for column in self.columns)
        texts = [self._texts(column) for column in self.columns]
        side = [
            'style="text-align:right"' if c.to_right else 'style="text-align:left"'
            for c in self.columns
        ]
        body = ""
        for line in zip(*texts, strict=True):
            cells = zip(side, line, strict=True)
            body += f"<tr>{''.join(f'<td {at}>{escape(cell)}</td>' for at, cell in cells)}</tr>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __repr__(self) -> str:
        shown = replace(self, rows=self.rows[:_SHOWN_ROWS])
        more = len(self) - len(shown)
        return "\n".join([*shown.text(), *([f"... and {more} more"] if more else [])])

    @property
    def cells(self) -> list[dict[str, Any]]:
        """One dictionary a run, by column; times as ISO text, durations in seconds."""
        return [{column.key: _value(column, row) for column in self.columns} for row in self.rows]

    def to_json(self) -> str:
        """A list of objects, one a line; what JSON lacks (nan, inf) as text."""
        lines = ",\n".join(dumps(cells) for cells in self.cells)
        return f"[\n{lines}\n]" if lines else "[]"

    def to_csv(self) -> str:
        """Return CSV with a head; an apostrophe is put before text that looks like a formula."""
        lines = [[harmless(name) for column in self.columns for name in _csv_names(column)]]
        lines += [
            [harmless(cell) for c in self.columns for cell in _csv_cells(c, cells)]
            for cells in self.cells
        ]
        out = []
        for line in lines:
            # Written with the ends of the standard, or a carriage return inside of a cell would not
            # be quoted.
            buffer = io.StringIO()
            csv.writer(buffer).writerow(line)
            out.append(buffer.getvalue().removesuffix("\r\n") + "\n")
        return "".join(out)

    def text(self, *, width: int | None = 80) -> list[str]:
        """Return aligned lines, the head first; long words are elided to fit `width`."""
        return [line for line, _ in self.lines(width=width)]

    def lines(self, *, width: int | None = 80) -> list[tuple[str, RunRow | None]]:
        """The same with the run that each line is about; None for the head."""
        texts = [[visible(column.name), *self._texts(column)] for column in self.columns]
        widths = [max(map(cell_count, each)) for each in texts]
        if width is not None:
            widths = _fitted(self.columns, texts, widths, width)
        padded = [
            _padded(each, cells, c)
            for each, cells, c in zip(texts, widths, self.columns, strict=True)
        ]
        lines = (_GAP.join(parts).rstrip() for parts in zip(*padded, strict=True))
        return list(zip(lines, [None, *self.rows], strict=True))

    def _texts(self, column: Column) -> list[str]:
        values = map(column.get, self.rows)
        show, now_ns = column.show, self.now_ns
        return [
            "-" if value in (None, "", []) else visible(show(value, now_ns)) for value in values
        ]


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Runs of one or several projects with their indexes, which know the names of columns."""

    rows: Sequence[RunRow]
    indexes: Sequence[Index]

    @classmethod
    def of(cls, rows: Sequence[RunRow]) -> FoundRuns:
        """These runs, with the indexes that they are from."""
        return cls(rows, list({id(row.index): row.index for row in rows}.values()))

    def names(self) -> KnownNames:
        """Everything that a run can be asked for by name."""
        from assay.query.expression import KnownNames  # here: a plain list asks for nothing

        return KnownNames(
            metrics=_union(index.metric_names() for index in self.indexes),
            results=_union(index.item_names("result") for index in self.indexes),
            config=_union(index.item_names("config") for index in self.indexes),
            labels=_union(index.item_names("label") for index in self.indexes),
        )

    def matching(self, condition: Condition) -> FoundRuns:
        """Return the runs that fulfil a condition."""
        rows: list[RunRow] = []
        for index in self.indexes:
            mine = [row for row in self.rows if row.index is index]
            derived = (row for row in mine if row.written.status == "running" or row.is_lost)
            states = {row.written.folder: (row.status, row.duration_s or 0.0) for row in derived}
            now_ns = mine[0].now_ns if mine else 0
            folders = index.matching(condition, now_ns=now_ns, states=states)
            rows += [row for row in mine if row.written.folder in folders]
        return FoundRuns(rows, self.indexes)

    def column(self, name: str) -> Column:
        """Return the column of a name: a fact, metric (`valid/acc.max`), result or config key."""
        if name in COLUMNS:
            return COLUMNS[name]
        if name == "desc":
            return self._of_items("desc", name, key="")
        names = self.names()
        if name in names.metrics:
            return Column(name, lambda row: _statistic(row, name, "last"), to_right=True)
        metric, _, statistic = name.rpartition(".")
        if metric in names.metrics and statistic in STATISTICS:
            return Column(name, lambda row: _statistic(row, metric, statistic), to_right=True)
        if name in names.results:
            return Column(name, lambda row: row.values.get(name))
        for key in (name, name.removeprefix("config.")):
            if key in names.config:
                return self._of_items("config", name, key=key)
        known = [*COLUMNS, "desc", *names.metrics, *names.results, *names.config]
        if metric in names.metrics:
            fix = f"of a metric there are {', '.join(f'.{each}' for each in STATISTICS)}"
        else:
            fix = (
                did_you_mean(name, known)
                or f"there are {', '.join(known[:20])}{', ...' if len(known) > 20 else ''}"
            )
        raise InputError(f"No run has a column `{name}`.", fix=fix)

    def _of_items(self, kind: Any, name: str, *, key: str) -> Column:
        values = {
            (index.project.root, folder): found[key]
            for index in self.indexes
            for folder, found in index.items(kind, [key]).items()
        }
        is_number = bool(values) and all(
            isinstance(value, int | float) for value in values.values()
        )
        return Column(
            name, lambda row: values.get((row.project.root, row.written.folder)), to_right=is_number
        )


def list_runs(
    projects: Project | Sequence[Project],
    *,
    where: str = "",
    grep: str = "",
    tests: bool = False,
    archived: bool = False,
    recent: timedelta | None = None,
    sort: str = DEFAULT_SORT,
    columns: Iterable[str] = DEFAULT_COLUMNS,
    limit: int | None = None,
    lost: Sequence[Project] = (),
) -> RunTable:
    """The runs of one project or several. `sort` is a column, with - for largest first.

    `where` is an expression, `grep` words that must stand in what was said about a run, `recent`
    the age of the oldest. Test runs and archived ones are listed only on request, or when `where`
    asks for their kind or label. Of the projects in `lost`, whose folders are gone, the index tells
    what it remembers. InputError for names that no run has.
    """
    now_ns = time.time_ns()
    found = find_runs(
        projects, where=where, grep=grep, tests=tests, archived=archived, lost=lost, now_ns=now_ns
    )
    if recent is not None:
        oldest_ns = now_ns - round(recent.total_seconds() * 1e9)
        found = FoundRuns(
            [row for row in found.rows if row.written.created_ns >= oldest_ns], found.indexes
        )
    by = found.column(sort.removeprefix("-"))
    chosen = tuple(found.column(name) for name in columns)
    rows = _sorted(found.rows, by, descending=sort.startswith("-"))
    return RunTable(chosen, tuple(rows[:limit]), now_ns)


def find_runs(
    projects: Project | Sequence[Project],
    *,
    where: str = "",
    grep: str = "",
    tests: bool = False,
    archived: bool = False,
    lost: Sequence[Project] = (),
    now_ns: int = 0,
) -> FoundRuns:
    """The runs that `list_runs` would list, the oldest first, with what they can be asked for."""
    now_ns = now_ns or time.time_ns()
    homes = [projects] if isinstance(projects, Project) else projects
    indexes = [open_index(home, texts=bool(grep)) for home in homes]
    gone = [Index(home, lost_rows(home), index_file(home)) for home in lost]
    rows = [row for index in indexes for row in _rows(index, now_ns)]
    rows += [row for index in gone for row in _rows(index, now_ns, is_lost=True)]
    found = FoundRuns(rows, [*indexes, *(index for index in gone if index.rows)])
    asked = set()
    if where and rows:
        from assay.query.expression import parse
        from assay.store.conditions import fields_of

        condition = parse(where, found.names())
        asked = {field.name or field.kind for field in fields_of(condition)}
        found = found.matching(condition)
    if grep and rows:
        from assay.query.expression import mentions

        found = found.matching(mentions(grep))
    kept = [
        row
        for row in found.rows
        if (tests or "kind" in asked or row.written.kind == "train")
        and (archived or "label" in asked or ARCHIVED not in row.labels)
    ]
    return FoundRuns(kept, found.indexes)


def rows_of(project: Project, *, now_ns: int = 0) -> list[RunRow]:
    """All runs of a project, the oldest first."""
    return _rows(open_index(project), now_ns or time.time_ns())


def metric_names(rows: Iterable[RunRow]) -> list[str]:
    """The metrics that any of the runs has, in the order in which they are met."""
    return list(
        dict.fromkeys(name for row in rows for name in json.loads(row.written.summaries_json))
    )


def _rows(index: Index, now_ns: int, *, is_lost: bool = False) -> list[RunRow]:
    rows = [RunRow(index, written, now_ns, is_lost=is_lost) for written in index.rows]
    return sorted(rows, key=lambda row: (row.written.created_ns, row.id))


def _union(names: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for each in names for name in each))


def _statistic(row: RunRow, metric: str, statistic: str) -> float | None:
    summary = json.loads(row.written.summaries_json).get(
        metric
    )  # one number of many: no summaries are made
    return (
        None
        if summary is None
        else int(summary["count"])
        if statistic == "count"
        else float(summary[statistic])
    )


def _array(np: Any, values: list[Any]) -> NDArray[Any]:
    if all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in values
    ):
        numbers: NDArray[np.float64] = np.array(
            [float("nan") if v is None else v for v in values], dtype=np.float64
        )
        return numbers
    objects: NDArray[Any] = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _sorted(rows: Sequence[RunRow], by: Column, *, descending: bool) -> list[RunRow]:
    """Return rows sorted by a column; missing and nan come last, equal ones newest first."""
    keyed = []
    without = []
    for row in reversed(rows):
        value = by.get(row)
        if value is None or value != value:
            without.append(row)
        else:
            keyed.append((by.sort_key(value) if by.sort_key else value, row))
    numbers = sum(isinstance(key, int | float) for key, _ in keyed)
    if numbers != len(keyed):  # results may be anything, and not all things have an order
        keyed = [(str(key), row) for key, row in keyed]
    keyed.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in keyed] + without


def _hashable(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else dumps(value)


def _local(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / 1e9).astimezone()


def _value(column: Column, row: RunRow) -> Any:
    value = column.get(row)
    if column.name in ("age", "created"):
        return _local(value).isoformat(timespec="seconds")
    return value


def _shown(value: Any) -> str:
    match value:
        case float():
            return number(value)
        case str():
            return value if value.isprintable() else " ".join(value.split())
        case int():
            return str(value)
        case _:
            return dumps(value)


def _csv_names(column: Column) -> tuple[str, ...]:
    return ("best_metric", "best") if column.name == "best" else (column.key,)


def _csv_cells(column: Column, cells: Mapping[str, Any]) -> tuple[Any, ...]:
    value = cells[column.key]
    if column.name == "best":
        return (value["metric"], value["value"]) if value else ("", "")
    if isinstance(value, list | dict):
        return (", ".join(value) if column.name == "labels" else dumps(value),)
    return ("" if value is None else value,)


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def harmless(cell: Any) -> Any:
    """Return a cell for a table that others open: no formula for a spreadsheet, no control codes
    for a terminal.

    >>> harmless("=1+1"), harmless("-0.5"), harmless("\x1b[2Jred"), harmless(-1)
    ("'=1+1", '-0.5', '\\x1b[2Jred', -1)
    """
    if not isinstance(cell, str):
        return cell
    shown = for_terminal(cell, color=False)
    if not cell.lstrip(" ").startswith(_FORMULA):
        return shown
    try:
        float(cell)
    except ValueError:
        return f"'{shown}"
    return cell


def _fitted(
    columns: Sequence[Column], texts: Sequence[Sequence[str]], widths: list[int], limit: int
) -> list[int]:
    """Return widths that together stay within `limit`, as far as columns of words can give: the
    widest gives first."""
    fitted = list(widths)
    too_much = sum(fitted) + len(_GAP) * (len(fitted) - 1) - limit
    for names in (_ELASTIC, ("best",)):
        elastic = [i for i, column in enumerate(columns) if column.name in names]
        least = {
            i: max(_LEAST_CELLS, _widest_number(texts[i]) if columns[i].name == "best" else 0)
            for i in elastic
        }
        while too_much > 0:
            able = [i for i in elastic if fitted[i] > least[i]]
            if not able:
                break
            fitted[max(able, key=lambda i: fitted[i])] -= 1
            too_much -= 1
    return fitted


def _widest_number(texts: Sequence[str]) -> int:
    return max(cell_count(text.rpartition(" ")[2]) for text in texts)


def _padded(texts: Sequence[str], width: int, column: Column) -> list[str]:
    pad = str.rjust if column.to_right else str.ljust
    out = []
    for text in texts:
        fitting = text if text.isascii() and len(text) <= width else column.shorten(text, width)
        out.append(pad(fitting, width - cell_count(fitting) + len(fitting)))
    return out


def _with_number(text: str, limit: int) -> str:
    """Return a name and a number in at most `limit` columns: of the name what there is room for,
    the number whole."""
    name, _, value = text.rpartition(" ")
    room = limit - cell_count(value) - 1
    if cell_count(text) <= limit:
        return text
    return f"{elided(name, room)} {value}" if room > 0 else elided(value, limit)
