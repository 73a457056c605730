"""`assay.runs`: the list of runs for programs and notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from assay.query import project_lookup
from assay.query.table import DEFAULT_COLUMNS, DEFAULT_SORT, RunTable, list_runs
from assay.store.layout import Project


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
    if all_projects:
        homes, lost = project_lookup.all_projects(), project_lookup.lost_projects()
    elif project is None:
        homes, lost = project_lookup.projects_here(), []
    else:
        homes, lost = (
            [
                project
                if isinstance(project, Project)
                else project_lookup.project_here(Path(project))
            ],
            [],
        )
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
