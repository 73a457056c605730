"""Lists of runs, newest first or by a column: of `assay ls`, and `assay.runs` for programs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from assay.query import project_lookup
from assay.query.catalog import NEWEST_FIRST, Asked, Catalog, Selection, open_catalog
from assay.query.columns import COLUMNS, DEFAULT_COLUMNS
from assay.query.groups import count_values
from assay.query.table import GroupTable, RunTable
from assay.store.layout import Project


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
    lost: Sequence[Project] = (),
) -> RunTable:
    """Return the runs of one project or several. `sort` is a column, with - for largest first.

    `where` is an expression, `grep` words that must stand in what was said about a run, `recent`
    the age of the oldest. Test runs and archived ones are listed only on request, or when `where`
    asks for their kind or label. Of the projects in `lost`, whose folders are gone, the index tells
    what it remembers. InputError for names that no run has.
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
    return make_table(open_catalog(projects, lost=lost, texts=bool(grep)), asked)


def make_table(catalog: Catalog, asked: Asked) -> RunTable:
    """Return the runs that are asked for as a table; InputError for names that no run has."""
    columns = tuple(catalog.known_column(name) for name in asked.columns)
    selection = catalog.select(asked).part(asked.offset, asked.limit)
    return RunTable.of(selection, columns)


def make_group_table(catalog: Catalog, asked: Asked) -> GroupTable:
    """Return groups of the runs that are asked for as a table.

    Without columns these are the best value of each run, or the first metrics where none has one.
    InputError for names that no run has.
    """
    selection = catalog.select(asked)
    names = asked.columns or default_columns(selection)
    columns = tuple(catalog.known_column(name) for name in names)
    grouping = catalog.group(selection, asked)
    return GroupTable(columns, tuple(grouping.groups(columns, asked.offset, asked.limit)))


def default_columns(selection: Selection) -> list[str]:
    """Return the columns of a list of groups: `best`, else the first three metrics."""
    (bests,) = selection.values([COLUMNS["best"]])
    if any(best is not None for best in bests):
        return ["best"]
    return list(selection.catalog.names().metrics[:3]) if len(selection) else []


def differing_keys(selection: Selection) -> list[str]:
    """Return the config keys that differ between the runs, sorted, without tag and desc."""
    return sorted(count_values(selection.items("config")))


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
