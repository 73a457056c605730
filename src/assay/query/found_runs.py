"""Runs found in the indexes of projects: selected by expression, label and kind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.core.errors import InputError, did_you_mean
from assay.core.terminal import elided
from assay.query.columns import COLUMNS, Column, metric_column
from assay.query.expression import KnownNames, mentions, parse
from assay.query.run_row import ARCHIVED, RunRow
from assay.store.conditions import STATISTICS, Condition, fields_of
from assay.store.index import Index
from assay.store.index_database import index_file
from assay.store.layout import Project
from assay.store.refresh_index import lost_rows, open_index

_LISTED = 20
_SHOWN_CELLS = 80


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Runs of one or several projects with their indexes, which know the names of columns."""

    rows: Sequence[RunRow]
    indexes: Sequence[Index]

    @classmethod
    def of(cls, rows: Sequence[RunRow]) -> FoundRuns:
        """Return these runs, with the indexes that they are from."""
        return cls(rows, list({id(row.index): row.index for row in rows}.values()))

    def names(self) -> KnownNames:
        """Return everything that a run can be asked for by name."""
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
        """Return the column of a name: a fact, metric (`valid/acc.max`), result or config key.

        It may be in backquotes, as in an expression.
        """
        if name.startswith("`") and name.endswith("`"):
            name = name[1:-1]
        if name in COLUMNS:
            return COLUMNS[name]
        if name == "desc":
            return self._of_items("desc", name, key="")
        names = self.names()
        if name in names.metrics:
            return metric_column(name, name, "last")
        metric, _, statistic = name.rpartition(".")
        if metric in names.metrics and statistic in STATISTICS:
            return metric_column(name, metric, statistic)
        if name in names.results:
            return Column(name, lambda row: row.values.get(name))
        for key in (name, name.removeprefix("config.")):
            if key in names.config:
                return self._of_items("config", name, key=key)
        raise InputError(
            f"No run has a column `{elided(name, _SHOWN_CELLS)}`.", fix=_how_to_name(name, names)
        )

    def _of_items(self, kind: Any, name: str, *, key: str) -> Column:
        values = {
            (index.project.root, folder): found[key]
            for index in self.indexes
            for folder, found in index.items(kind, [key]).items()
        }
        is_number = all(isinstance(value, int | float) for value in values.values())
        return Column(
            name,
            lambda row: values.get((row.project.root, row.written.folder)),
            to_right=bool(values) and is_number,
        )


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
    """Return the runs that `list_runs` would list, oldest first, and the names that they know."""
    now_ns = now_ns or time.time_ns()
    homes = [projects] if isinstance(projects, Project) else projects
    found = _all_runs(homes, lost, now_ns, texts=bool(grep))
    fields_asked: set[str] = set()
    if where and found.rows:
        condition = parse(where, found.names())
        fields_asked = {field.name or field.kind for field in fields_of(condition)}
        found = found.matching(condition)
    if grep and found.rows:
        found = found.matching(mentions(grep))
    tests = tests or "kind" in fields_asked
    archived = archived or "label" in fields_asked
    kept = [
        row
        for row in found.rows
        if (tests or row.written.kind == "train") and (archived or ARCHIVED not in row.labels)
    ]
    return FoundRuns(kept, found.indexes)


def _all_runs(
    projects: Sequence[Project], lost: Sequence[Project], now_ns: int, *, texts: bool
) -> FoundRuns:
    indexes = [open_index(project, texts=texts) for project in projects]
    rows = [row for index in indexes for row in _rows(index, now_ns)]
    for project in lost:
        index = Index(project, lost_rows(project), index_file(project))
        if index.rows:
            rows += _rows(index, now_ns, is_lost=True)
            indexes.append(index)
    return FoundRuns(rows, indexes)


def rows_of(project: Project, *, now_ns: int = 0) -> list[RunRow]:
    """Return all runs of a project, the oldest first."""
    return _rows(open_index(project), now_ns or time.time_ns())


def metric_names(rows: Iterable[RunRow]) -> list[str]:
    """Return the metrics that any of the runs has, in the order in which they are met."""
    return _union(json.loads(row.written.summaries_json) for row in rows)


def _rows(index: Index, now_ns: int, *, is_lost: bool = False) -> list[RunRow]:
    rows = [RunRow(index, written, now_ns, is_lost=is_lost) for written in index.rows]
    return sorted(rows, key=lambda row: (row.written.created_ns, row.id))


def _union(names: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for each in names for name in each))


def _how_to_name(name: str, names: KnownNames) -> str:
    if name.rpartition(".")[0] in names.metrics:
        return f"of a metric there are {', '.join(f'.{each}' for each in STATISTICS)}"
    known = [*COLUMNS, "desc", *names.metrics, *names.results, *names.config]
    if near := did_you_mean(name, known):
        return near
    more = ", ..." if len(known) > _LISTED else ""
    return f"there are {', '.join(known[:_LISTED])}{more}"
