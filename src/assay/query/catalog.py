"""Catalog of the runs of projects: the one place that is asked which runs there are, and for cells.

The command line, the page, result tables, notebooks and `assay.runs` ask it, so that all of them
have one answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.core.errors import InputError
from assay.core.terminal import elide
from assay.query.columns import COLUMNS, Column, find_column
from assay.query.expression import (
    ExpressionError,
    KnownNames,
    describe_shadow,
    mentions,
    parse,
    unknown_name,
)
from assay.query.groups import Grouping, RunGroup
from assay.query.run_row import ARCHIVED, RunRow
from assay.query.selection import Place, Selection, unite_names
from assay.store.cells import in_order
from assay.store.conditions import Both, Condition, Field, FieldComparison, fields_in
from assay.store.index import Index, Moment
from assay.store.index_rows import IndexRow
from assay.store.layout import Project, RunFolder
from assay.store.refresh_index import Synchronized

NEWEST_FIRST = "-created"
_REMEMBERED = 8
_NEWEST = 50
_SHOWN_CELLS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Question for runs: expression, words, sort keys (- for descending), columns and range.

    Test runs and archived ones are left out unless they are asked for, or `where` asks for their
    kind or label. With `group` each row stands for the runs that have these columns alike; `config`
    is all of the config but the seed, and the keys or patterns in `ignored`.
    """

    where: str = ""
    grep: str = ""
    sort: Sequence[str] = (NEWEST_FIRST,)
    columns: Sequence[str] = ()
    group: Sequence[str] = ()
    ignored: Sequence[str] = ()
    tests: bool = False
    archived: bool = False
    since_ns: int = 0
    offset: int = 0
    limit: int | None = 100


@dataclass(frozen=True, slots=True)
class PageRow:
    """One run, with a value or None for each column of the page."""

    run: RunRow
    cells: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the rows that were asked for; `total` counts all rows, `runs` all runs in them.

    `newest` has the newest run of each group.
    """

    columns: tuple[Column, ...]
    total: int
    runs: int
    rows: tuple[PageRow, ...] = ()
    groups: tuple[RunGroup, ...] = ()
    newest: tuple[RunRow, ...] = ()


class _Known:
    """Facts about the runs at one version of the index."""

    def __init__(self) -> None:
        self.names: KnownNames | None = None
        self.places: dict[tuple[Any, ...], list[Place]] = {}


class Catalog:
    """The runs of a project, or of several. Any thread may ask; one at a time looks at folders."""

    def __init__(
        self,
        projects: Project | Sequence[Project],
        *,
        summarize: Callable[[RunFolder], str] | None = None,
    ) -> None:
        """Open a catalog, which knows what the indexes remember until it is synchronized.

        `summarize` returns the summaries of an open run as JSON, if the caller has them in memory.
        """
        homes = [projects] if isinstance(projects, Project) else projects
        self.version = 0
        self.reading: tuple[int, int] | None = None
        """Folders that were read and all folders, of an index in the making."""
        self.readable = threading.Event()
        """Set as soon as the index holds runs, though more are to be read."""
        self._indexes = [Index(home) for home in homes]
        self._summarize = summarize
        self._lock = threading.Lock()
        self._known = _Known()

    @property
    def project(self) -> Project:
        """The first of its projects."""
        return self._indexes[0].project

    def close(self) -> None:
        """Delete the indexes that lie in folders of this process."""
        for index in self._indexes:
            index.close()

    def synchronize(
        self, only: Collection[str] | None = None, *, texts: bool = False, in_parts: bool = True
    ) -> Synchronized:
        """Scan all run folders, or those named, and index the new and changed runs.

        `texts` also looks for edited READMEs. With `in_parts` many runs are indexed a part at a
        time, for others to ask meanwhile.
        """
        on_read = self._read if in_parts else None
        with self._lock:
            found = Synchronized()
            for index in self._indexes:
                found += index.synchronize(
                    only, texts=texts, summarize=self._summarize, on_read=on_read
                )
            self.reading = None
            if found:
                self._change()
            self.readable.set()
            return found

    # ------------------------------------------------------------------------------- names, columns

    def names(self) -> KnownNames:
        """Return everything that a run can be asked for by name."""
        known = self._known
        if known.names is None:
            known.names = KnownNames(
                metrics=unite_names(index.metric_names() for index in self._indexes),
                results=unite_names(index.item_names("result") for index in self._indexes),
                config=unite_names(
                    index.item_names(kind)
                    for index in self._indexes
                    for kind in ("config", "default")
                ),
                labels=unite_names(index.item_names("label") for index in self._indexes),
            )
        return known.names

    def column(self, name: str) -> Column:
        """Return the column of this name, of the kind "missing" if no run has any such thing."""
        return COLUMNS[name] if name in COLUMNS else find_column(name, self.names())

    def known_column(self, name: str, *, where: str = "") -> Column:
        """Return the column of this name; InputError with the nearest one if no run has it."""
        column = self.column(name)
        if column.field is None:
            what, fix = unknown_name(name, self.names())
            raise InputError(f"{what[0].upper()}{what[1:]}.", where=where, fix=fix)
        return column

    def best_modes(self) -> dict[str, str]:
        """Return the metrics that the newest runs call their best by, each with "min" or "max".

        The mode is "" for a metric of which some runs want it small and some large.
        """
        found: dict[str, str] = {}
        for row in self.part(Asked(limit=_NEWEST)).rows():
            if row is not None and (name := row.written.best_metric):
                mode = row.written.best_mode
                found[name] = mode if found.get(name, mode) == mode else ""
        return found

    # -------------------------------------------------------------------- which runs, their cells

    def select(self, asked: Asked) -> Selection:
        """Return all runs that are asked for, in order.

        ExpressionError for a bad expression, InputError for a sort key that no run has.
        """
        known = self._known
        moments = self._look()
        sort = (NEWEST_FIRST,) if asked.group else tuple(asked.sort)
        key = (asked.where, asked.grep, sort, asked.tests, asked.archived, asked.since_ns)
        places = known.places.get(key)
        if places is None:
            places = self._sort(self._find(asked, moments), sort, moments)
            # A status or a duration goes on changing without a change on disk.
            if not any(moment.states for moment in moments.values()):
                newest = list(known.places.items())[-_REMEMBERED:]
                known.places = {**dict(newest), key: places}
        return Selection(self, places, moments)

    def part(self, asked: Asked) -> Selection:
        """Return the runs in the range that is asked for, in order; errors as of `select`."""
        if asked.limit is None or tuple(asked.sort) != (NEWEST_FIRST,):
            return self.select(asked).part(asked.offset, asked.limit)
        moments = self._look()
        places = self._find(asked, moments, asked.offset + asked.limit)
        newest = Selection(self, self._sort(places, asked.sort, moments), moments)
        return newest.part(asked.offset, asked.limit)

    def page(self, asked: Asked) -> Page:
        """Return one page of runs or groups; errors as of `select`."""
        columns = tuple(self.column(name) for name in asked.columns)
        selection = self.select(asked)
        if asked.group:
            grouping = self.group(selection, asked)
            groups = grouping.groups(columns, asked.offset, asked.limit)
            rows = grouping.newest(asked.offset, asked.limit).rows()
            here = [(group, row) for group, row in zip(groups, rows, strict=True) if row]
            return Page(
                columns,
                len(grouping),
                len(selection),
                groups=tuple(group for group, _ in here),
                newest=tuple(row for _, row in here),
            )
        shown = selection.part(asked.offset, asked.limit)
        cells = zip(*shown.values(columns), strict=True) if columns else [()] * len(shown)
        lines = zip(shown.rows(), cells, strict=True)
        found = tuple(PageRow(row, line) for row, line in lines if row is not None)
        return Page(columns, len(selection), len(selection), rows=found)

    def describe_shadows(self, asked: Asked) -> list[str]:
        """Return a sentence for each name that means a metric or fact, and is a config key too."""
        names = [*asked.columns, *asked.group, *(key.removeprefix("-") for key in asked.sort)]
        fields = [self.column(name).field for name in names if name not in COLUMNS]
        if asked.where.strip():
            with contextlib.suppress(ExpressionError):  # `select` raises it
                fields += fields_in(parse(asked.where, self.names()))
        found = (describe_shadow(each, self.names()) for each in fields if each is not None)
        return list(dict.fromkeys(filter(None, found)))

    def group(self, selection: Selection, asked: Asked) -> Grouping:
        """Return the runs grouped as they are asked for, by the first sort key."""
        by = [self.column(name) for name in asked.group]
        known = [column for column in by if column.field is not None]
        grouping = Grouping(selection, known, ignored=asked.ignored)
        sort, *_ = asked.sort or [NEWEST_FIRST]
        name = sort.removeprefix("-")
        if sort != NEWEST_FIRST:
            column = None if name == "runs" else self.known_column(name, where=_place_of(sort))
            grouping.sort(name, column, descending=sort.startswith("-"))
        return grouping

    def ids(self, asked: Asked) -> list[str]:
        """Return the ids of all runs that are asked for, in order."""
        return self.select(asked).ids()

    def values(self, asked: Asked, names: Sequence[str]) -> list[list[Any]]:
        """Return for each column the values of all selected runs in order, None where missing."""
        return self.select(asked).values([self.column(name) for name in names])

    # ----------------------------------------------------------------------------------- runs by id

    def select_ids(self, ids: Sequence[str]) -> Selection:
        """Return the runs of these ids that are there, in the order of the ids."""
        places = {
            run_id: (index, folder)
            for index in self._indexes
            for run_id, folder in index.folders_by_id(ids).items()
        }
        return Selection(self, [places[each] for each in ids if each in places], self._look())

    def rows(self, ids: Sequence[str]) -> dict[str, RunRow]:
        """Return the runs of these ids that are there, by id."""
        return {row.id: row for row in self.select_ids(ids).rows() if row is not None}

    def metrics_of(self, ids: Sequence[str]) -> list[str]:
        """Return the metrics that any of these runs has, in the order of the alphabet."""
        return self.select_ids(ids).metrics()

    def values_of(self, ids: Sequence[str], name: str) -> dict[str, Any]:
        """Return the runs' values of a column by id; runs without a value are left out.

        InputError for an unknown name.
        """
        found, cells = self.select_ids(ids).values([COLUMNS["id"], self.known_column(name)])
        pairs = zip(found, cells, strict=True)
        return {str(run_id): value for run_id, value in pairs if value is not None}

    def repeats_of(self, run_id: str) -> list[str]:
        """Return the ids of this run and of the runs that differ from it only in the seed."""
        row = self.rows([run_id]).get(run_id)
        if row is None or not row.written.seedless_hash:
            return [run_id]
        alike = FieldComparison(Field("run", "group"), "=", row.written.seedless_hash)
        moments = self._look()
        places = self._match(alike, moments, tests=False, hidden_label=ARCHIVED)
        return sorted({*Selection(self, places, moments).ids(), run_id})

    def look_again(self, selection: Selection) -> Selection:
        """Return the same runs as they are now."""
        return replace(selection, moments=self._look())

    def all_rows(self) -> list[RunRow]:
        """Return all runs, tests and archived ones too, the oldest first."""
        rows = [row for index in self._indexes for row in self._make_rows(index, index.all_rows())]
        return sorted(rows, key=lambda row: (row.written.created_ns, row.written.folder))

    def open_rows(self) -> list[RunRow]:
        """Return the runs that wrote no end, as they are now."""
        return [row for index in self._indexes for row in self._make_rows(index, index.open_rows())]

    def recent_rows(self, since_ns: int, limit: int) -> list[RunRow]:
        """Return the runs active since a moment, test runs included, the newest first."""
        return [
            row
            for index in self._indexes
            for row in self._make_rows(index, index.recent_rows(since_ns, limit))
        ]

    # ------------------------------------------------------------------------------------ the parts

    def _make_rows(self, index: Index, written: Iterable[IndexRow]) -> list[RunRow]:
        now_ns = time.time_ns()
        return [RunRow(index, row, now_ns) for row in written]

    def _read(self, done: int, total: int) -> None:
        self.reading = done, total
        self._change()
        self.readable.set()

    def _change(self) -> None:
        # In this order: what a reader takes for the new version is never of the old one.
        self._known = _Known()
        self.version += 1

    def _look(self) -> dict[Index, Moment]:
        """Return the present moment of each index: the states of open runs."""
        now_ns = time.time_ns()
        moments = {}
        for index in self._indexes:
            rows = [RunRow(index, row, now_ns) for row in index.open_rows()]
            states = {row.written.folder: (row.status, row.duration_s) for row in rows}
            moments[index] = Moment(now_ns=now_ns, states=states)
        return moments

    def _find(
        self, asked: Asked, moments: Mapping[Index, Moment], limit: int | None = None
    ) -> list[Place]:
        """Return the runs that are asked for, at most the `limit` newest of each index."""
        condition: Condition | None = None
        named: set[str] = set()
        if asked.where.strip():
            try:
                condition = parse(asked.where, self.names())
            except ExpressionError:
                if not self._match(None, moments, tests=True, hidden_label=""):
                    return []  # where no run is, none has any name
                raise
            named = {each.name or each.kind for each in fields_in(condition)}
        if asked.grep.strip():
            condition = _both(condition, mentions(asked.grep))
        if asked.since_ns:
            newer = FieldComparison(Field("run", "created"), ">=", asked.since_ns)
            condition = _both(condition, newer)
        return self._match(
            condition,
            moments,
            tests=asked.tests or "kind" in named,
            hidden_label="" if asked.archived or "label" in named else ARCHIVED,
            limit=limit,
        )

    def _match(
        self,
        condition: Condition | None,
        moments: Mapping[Index, Moment],
        *,
        tests: bool,
        hidden_label: str,
        limit: int | None = None,
    ) -> list[Place]:
        return [
            (index, folder)
            for index in self._indexes
            for folder in index.select(
                condition, moments[index], tests=tests, hidden_label=hidden_label, limit=limit
            )
        ]

    def _sort(
        self, places: list[Place], sort: Sequence[str], moments: Mapping[Index, Moment]
    ) -> list[Place]:
        """Return runs in order by several keys; of ties the newest comes first."""
        keys = [*sort, NEWEST_FIRST] if len(self._indexes) > 1 else list(sort)
        if keys == [NEWEST_FIRST] and len(self._indexes) == 1:
            return places  # as an index tells them
        columns = [self.known_column(key.removeprefix("-"), where=_place_of(key)) for key in keys]
        for key, column in zip(reversed(keys), reversed(columns), strict=True):
            (values,) = Selection(self, places, moments).values([column])
            pairs = zip(values, places, strict=True)
            places = in_order(pairs, descending=key.startswith("-"))
        return places


def open_catalog(projects: Project | Sequence[Project], *, texts: bool = False) -> Catalog:
    """Return the catalog of projects as their folders are now; `texts` as of `synchronize`."""
    catalog = Catalog(projects)
    catalog.synchronize(texts=texts, in_parts=False)
    return catalog


def _place_of(sort: str) -> str:
    return f"sort: {elide(sort, _SHOWN_CELLS)}"


def _both(left: Condition | None, right: Condition) -> Condition:
    return right if left is None else Both(left, right)
