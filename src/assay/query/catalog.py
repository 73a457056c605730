"""Catalog of the runs of one project, for a long-lived reader that asks for pages."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.errors import InputError
from assay.query.expression import KnownNames, field_named, mentions, parse, unknown_name
from assay.query.run_row import ARCHIVED, RunRow
from assay.query.seed_groups import group_order, together
from assay.store.cells import in_order
from assay.store.conditions import Both, Condition, Field, FieldComparison, fields_of
from assay.store.index import Index
from assay.store.index_database import index_file
from assay.store.layout import Project, RunFolder
from assay.store.refresh_index import IndexFileError, Synchronized, synchronize
from assay.store.run_pages import (
    RUN_COLUMNS,
    RunSelection,
    SortKey,
    columns_of,
    folders_by_id,
    metrics_of_folders,
    open_rows,
    recent_rows,
    rows_of_folders,
    select_folders,
)

ColumnKind = Literal["run", "metric", "config", "result", "label", "note", "desc", "missing"]
_REMEMBERED = 8
_NEWEST = 50
BY_CONFIG = "config"
"""The grouping of runs that differ in nothing but their seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Request for a page: expression, words, sort keys (- for descending), columns and range.

    With `group` each row stands for the runs that have these columns alike; `config` is all of the
    config but the seed.
    """

    where: str = ""
    grep: str = ""
    sort: Sequence[str] = ("-created",)
    columns: Sequence[str] = ()
    group: Sequence[str] = ()
    tests: bool = False
    archived: bool = False
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class PageColumn:
    """One column of a page. Its kind is "missing" when no run has anything of that name."""

    name: str
    kind: ColumnKind
    statistic: str = ""


@dataclass(frozen=True, slots=True)
class PageRow:
    """One run, with a value or None for each column of the page."""

    run: RunRow
    cells: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Runs that are alike in what a page is grouped by, the newest first.

    `cells` has for each column a Spread of numbers, the value that all runs share, or None.
    """

    key: tuple[Any, ...]
    newest: RunRow
    ids: tuple[str, ...]
    cells: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the rows that were asked for; `total` counts all rows, `runs` all runs in them."""

    columns: tuple[PageColumn, ...]
    total: int
    runs: int
    rows: tuple[PageRow, ...] = ()
    groups: tuple[PageGroup, ...] = ()


@dataclass(slots=True)
class Reading:
    """Progress of an index in the making: `done` of `total` folders."""

    done: int = 0
    total: int = 0


@dataclass(slots=True)
class _Known:
    """Facts about the runs at one version of the index."""

    names: KnownNames | None = None
    varying: list[str] | None = None
    folders: dict[tuple[Any, ...], list[str]] = field(default_factory=dict)


class Catalog:
    """The runs of one project. Any thread may ask; one at a time brings it up to date."""

    def __init__(
        self, project: Project, *, summarize: Callable[[RunFolder], str] | None = None
    ) -> None:
        """Open the catalog of a project.

        `summarize` returns the summaries of an open run as JSON, if the caller has them in memory.
        """
        self.project = project
        self.version = 0
        self.reading = Reading()
        self.readable = threading.Event()
        """Set as soon as the index holds runs, though more are to be read."""
        self._summarize = summarize
        self._file = index_file(project)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()
        self._known = _Known()

    def close(self) -> None:
        """Delete the index if it lay in a folder of this process."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def synchronize(self, only: Collection[str] | None = None) -> Synchronized:
        """Scan all run folders, or those named, and index the new and changed runs."""
        with self._lock:
            try:
                found = self._synchronize(only)
            except IndexFileError:
                if self._scratch is not None:
                    raise
                # The user's cache folder cannot be written, or a newer assay has it: for this
                # process alone, then.
                self._scratch = tempfile.TemporaryDirectory(prefix="assay-index-")
                self._file = Path(self._scratch.name) / "index.sqlite"
                found = self._synchronize(None)
            self.reading = Reading()
            if found:
                self._change()
            self.readable.set()
            return found

    def page(self, asked: Asked) -> Page:
        """Return one page of runs or groups.

        ExpressionError for a bad expression, InputError for a sort key that no run has.
        """
        folders = self._folders(asked)
        if asked.group:
            return self._grouped(asked, folders)
        shown = folders[asked.offset : asked.offset + asked.limit]
        columns = [self.column(name) for name in asked.columns]
        runs = self._rows(shown)
        values = self._columns(shown, columns)
        rows = []
        for folder in shown:
            if folder in runs:
                cells = tuple(each.get(folder) for each in values)
                rows.append(PageRow(runs[folder], cells))
        return Page(
            columns=tuple(column for column, _ in columns),
            total=len(folders),
            runs=len(folders),
            rows=tuple(rows),
        )

    def ids(self, asked: Asked) -> list[str]:
        """Return the ids of all runs that are asked for, in order."""
        folders = self._folders(asked)
        return [str(value) for value in self._column(folders, Field("run", "id"))]

    def values(self, asked: Asked, names: Sequence[str]) -> list[list[Any]]:
        """Return for each column the values of all selected runs in order, None where missing."""
        folders = self._folders(asked)
        lists = []
        for name in names:
            _, found = self.column(name)
            lists.append(self._column(folders, found) if found else [None] * len(folders))
        return lists

    def rows(self, ids: Sequence[str]) -> dict[str, RunRow]:
        """Return the runs of these ids that are there, by id."""
        folders = folders_by_id(self._index, ids)
        rows = self._rows(list(folders.values()))
        return {run_id: rows[folder] for run_id, folder in folders.items() if folder in rows}

    def names(self) -> KnownNames:
        """Return everything that a run can be asked for by name."""
        known = self._known
        if known.names is None:
            index = self._index
            known.names = KnownNames(
                metrics=index.metric_names(),
                results=index.item_names("result"),
                config=index.item_names("config"),
                labels=index.item_names("label"),
            )
        return known.names

    def metrics_of(self, ids: Sequence[str]) -> list[str]:
        """Return the metrics that any of these runs has, in the order of the alphabet."""
        return metrics_of_folders(self._index, list(folders_by_id(self._index, ids).values()))

    def repeats_of(self, run_id: str) -> list[str]:
        """Return the ids of this run and of the finished runs that differ only in the seed."""
        row = self.rows([run_id]).get(run_id)
        if row is None or not row.written.seedless_hash:
            return [run_id]
        alike = FieldComparison(Field("run", "group"), "=", row.written.seedless_hash)
        ended = Both(alike, FieldComparison(Field("run", "status"), "=", "finished"))
        folders = select_folders(
            self._index,
            RunSelection(ended, hidden_label=ARCHIVED),
            now_ns=time.time_ns(),
            states=self._states(),
        )
        found = [str(each) for each in self._column(folders, Field("run", "id"))]
        return sorted({*found, run_id})

    def values_of(self, ids: Sequence[str], name: str) -> dict[str, Any]:
        """Return the runs' values of a column by id; runs without a value are left out.

        InputError for an unknown name.
        """
        column, found = self.column(name)
        if found is None:
            what, fix = unknown_name(name, self.names())
            raise InputError(f"{what[0].upper()}{what[1:]}.", fix=fix)
        folders = folders_by_id(self._index, ids)
        values = self._columns(list(folders.values()), [(column, found)])[0]
        return {run_id: values[folder] for run_id, folder in folders.items() if folder in values}

    def best_modes(self) -> dict[str, str]:
        """Return the metrics that the newest runs call their best by, each with "min" or "max".

        The mode is "" for a metric of which some runs want it small and some large.
        """
        found: dict[str, str] = {}
        for row in self._rows(self._folders(Asked())[:_NEWEST]).values():
            name, mode = row.written.best_metric, row.written.best_mode
            if name:
                found[name] = mode if found.get(name, mode) == mode else ""
        return found

    def varying(self) -> list[str]:
        """Return the config keys in which the newest runs differ, those with most values first."""
        known = self._known
        if known.varying is None:
            newest = self._folders(Asked())[:_NEWEST]
            values = self._index.all_items("config", newest)
            known.varying = _differing(list(values.values()))
        return known.varying

    def column(self, name: str) -> tuple[PageColumn, Field | None]:
        """Return the column of this name and its field, None if no run has such a field."""
        if name in RUN_COLUMNS:
            return PageColumn(name, "run"), Field("run", name)
        found = field_named(name, self.names())
        if found is None:
            return PageColumn(name, "missing"), None
        statistic = found.statistic if found.kind == "metric" else ""
        return PageColumn(name, found.kind, statistic), found

    def open_rows(self) -> list[RunRow]:
        """Return the runs that wrote no end, as they are now."""
        now_ns = time.time_ns()
        return [RunRow(self._index, row, now_ns) for row in open_rows(self._index)]

    def recent_rows(self, since_ns: int, limit: int) -> list[RunRow]:
        """Return the runs active since a moment, test runs included, the newest first."""
        now_ns = time.time_ns()
        return [
            RunRow(self._index, row, now_ns) for row in recent_rows(self._index, since_ns, limit)
        ]

    # ------------------------------------------------------------------------------------ the parts

    @property
    def _index(self) -> Index:
        return Index(self.project, [], self._file)

    def _synchronize(self, only: Collection[str] | None) -> Synchronized:
        return synchronize(
            self.project, self._file, only=only, summarize=self._summarize, on_read=self._read
        )

    def _read(self, done: int, total: int) -> None:
        self.reading = Reading(done, total)
        self._change()
        self.readable.set()

    def _change(self) -> None:
        self.version += 1
        self._known = _Known()

    def _states(self) -> dict[str, tuple[str, float]]:
        return {row.written.folder: (row.status, row.duration_s or 0.0) for row in self.open_rows()}

    def _folders(self, asked: Asked) -> list[str]:
        """Return the folders of all selected runs in order, cached while nothing changes."""
        known = self._known
        key = (asked.where, asked.grep, tuple(asked.sort), asked.tests, asked.archived)
        found = known.folders.get(key)
        if found is None:
            states = self._states()
            selected = self._selected(asked)
            found = select_folders(self._index, selected, now_ns=time.time_ns(), states=states)
            # A status or a duration goes on changing without a change on disk.
            if not states:
                newest = list(known.folders.items())[-_REMEMBERED:]
                known.folders = {**dict(newest), key: found}
        return found

    def _selected(self, asked: Asked) -> RunSelection:
        condition: Condition | None = None
        named: set[str] = set()
        if asked.where.strip():
            condition = parse(asked.where, self.names())
            named = {each.name or each.kind for each in fields_of(condition)}
        if asked.grep.strip():
            words = mentions(asked.grep)
            condition = words if condition is None else Both(condition, words)
        return RunSelection(
            condition,
            () if asked.group else [self._order(name) for name in asked.sort],
            tests=asked.tests or "kind" in named,
            hidden_label="" if asked.archived or "label" in named else ARCHIVED,
        )

    def _order(self, name: str) -> SortKey:
        column, found = self.column(name.removeprefix("-"))
        if found is None:
            what, fix = unknown_name(column.name, self.names())
            raise InputError(f"{what[0].upper()}{what[1:]}.", where=f"sort: {name}", fix=fix)
        return SortKey(found, name.startswith("-"))

    def _rows(self, folders: Sequence[str]) -> dict[str, RunRow]:
        index = self._index
        now_ns = time.time_ns()
        return {
            name: RunRow(index, row, now_ns)
            for name, row in rows_of_folders(index, folders).items()
        }

    def _columns(
        self, folders: Sequence[str], columns: Sequence[tuple[PageColumn, Field | None]]
    ) -> list[Mapping[str, Any]]:
        fields = [found for _, found in columns if found is not None]
        states = self._states()
        values = columns_of(self._index, folders, fields, now_ns=time.time_ns(), states=states)
        in_order = iter(values)
        return [{} if found is None else next(in_order) for _, found in columns]

    def _column(self, folders: Sequence[str], found: Field) -> list[Any]:
        values = self._columns(folders, [(PageColumn("", found.kind), found)])[0]
        return [values.get(folder) for folder in folders]

    def _grouped(self, asked: Asked, folders: Sequence[str]) -> Page:
        """Return a page of groups, sorted by the first sort key: by its mean if it is a number."""
        columns = [self.column(name) for name in asked.columns]
        members = self._members(asked.group, folders)
        sort, *_ = asked.sort or ["-created"]
        ordered = self._ordered_groups(members, sort, folders)
        shown = ordered[asked.offset : asked.offset + asked.limit]
        inside = [folder for key in shown for folder in members[key]]
        values = self._columns(inside, columns)
        counted = self._counted(members, inside)
        rows = self._rows([members[key][0] for key in shown])
        (ids,) = self._columns(inside, [(PageColumn("id", "run"), Field("run", "id"))])
        groups = []
        for key in shown:
            newest, *_ = within = members[key]
            if newest in rows:
                run_ids = tuple(str(ids[folder]) for folder in within if folder in ids)
                cells = []
                for (column, _), known in zip(columns, values, strict=True):
                    inner = [known.get(folder) for folder in counted[key]]
                    cells.append(together(inner, is_setting=column.kind == "config"))
                groups.append(PageGroup(key, rows[newest], run_ids, tuple(cells)))
        return Page(
            columns=tuple(column for column, _ in columns),
            total=len(members),
            runs=len(folders),
            groups=tuple(groups),
        )

    def _counted(
        self, members: Mapping[tuple[Any, ...], list[str]], folders: Sequence[str]
    ) -> dict[tuple[Any, ...], list[str]]:
        """Return the runs of each group whose numbers count: those that finished, else all."""
        (statuses,) = self._columns(
            folders, [(PageColumn("status", "run"), Field("run", "status"))]
        )
        return {
            key: [folder for folder in within if statuses.get(folder) == "finished"] or within
            for key, within in members.items()
        }

    def _members(
        self, group: Sequence[str], folders: Sequence[str]
    ) -> dict[tuple[Any, ...], list[str]]:
        """Return the folders of each group by the values that its runs share."""
        fields = [self.column("group" if name == BY_CONFIG else name)[1] for name in group]
        values = [self._column(folders, each) for each in fields if each is not None]
        members: dict[tuple[Any, ...], list[str]] = {}
        for folder, *key in zip(folders, *values, strict=True):
            members.setdefault(tuple(key), []).append(folder)
        return members

    def _ordered_groups(
        self, members: Mapping[tuple[Any, ...], list[str]], sort: str, folders: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """Return the keys of groups in order."""
        order = self._order(sort)
        values = self._columns(folders, [(PageColumn("", order.field.kind), order.field)])[0]
        counted = self._counted(members, folders)
        pairs = [
            (group_order([values.get(folder) for folder in within]), key)
            for key, within in counted.items()
        ]
        return in_order(pairs, descending=order.descending)


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that differ, those with the most values first, without `tag` and `desc`."""
    different = {}
    for key in dict.fromkeys(key for config in configs for key in config):
        values = {str(config.get(key)) for config in configs}
        if len(values) > 1 and key not in ("tag", "desc"):
            different[key] = len(values)
    return sorted(different, key=lambda key: (-different[key], key))
