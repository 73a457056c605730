"""Lists of runs, newest first or by a column: of `assay ls`, and `assay.runs` for programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from assay.query import project_lookup
from assay.query.columns import DEFAULT_COLUMNS, Column
from assay.query.found_runs import find_runs
from assay.query.run_row import RunRow
from assay.query.table import RunTable
from assay.store.cells import in_order
from assay.store.layout import Project

DEFAULT_SORT = "-created"


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
    """Return the runs of one project or several. `sort` is a column, with - for largest first.

    `where` is an expression, `grep` words that must stand in what was said about a run, `recent`
    the age of the oldest. Test runs and archived ones are listed only on request, or when `where`
    asks for their kind or label. Of the projects in `lost`, whose folders are gone, the index tells
    what it remembers. InputError for names that no run has.
    """
    now_ns = time.time_ns()
    found = find_runs(
        projects, where=where, grep=grep, tests=tests, archived=archived, lost=lost, now_ns=now_ns
    )
    rows = found.rows
    if recent is not None:
        oldest_ns = now_ns - round(recent.total_seconds() * 1e9)
        rows = [row for row in rows if row.written.created_ns >= oldest_ns]
    sort_column = found.column(sort.removeprefix("-"))
    chosen = tuple(found.column(name) for name in columns)
    rows = _sorted(rows, sort_column, descending=sort.startswith("-"))
    return RunTable(chosen, tuple(rows[:limit]), now_ns)


def runs(
    where: str = "",
    *,
    grep: str = "",
    columns: Iterable[str] = DEFAULT_COLUMNS,
    sort: str = DEFAULT_SORT,
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
    homes, lost = _searched_projects(project, all_projects=all_projects)
    return list_runs(
        homes,
        where=where,
        grep=grep,
        tests=tests,
        archived=archived,
        recent=recent,
        sort=sort,
        columns=columns,
        limit=limit,
        lost=lost,
    )


def _searched_projects(
    project: Project | str | os.PathLike[str] | None, *, all_projects: bool
) -> tuple[list[Project], list[Project]]:
    """Return the projects whose runs are listed, and those of which only the index is left."""
    if all_projects:
        return project_lookup.all_projects(), project_lookup.lost_projects()
    if project is None:
        return project_lookup.projects_here(), []
    if isinstance(project, Project):
        return [project], []
    return [project_lookup.project_here(Path(project))], []


def _sorted(rows: Sequence[RunRow], column: Column, *, descending: bool) -> list[RunRow]:
    """Return rows sorted by a column, equal ones newest first; `rows` come oldest first."""
    pairs = ((column.sort_value(row), row) for row in reversed(rows))
    return in_order(pairs, descending=descending)
