"""Selection of runs by address or by expression, for every command that takes several runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from assay.core.errors import InputError
from assay.query.find import find_run
from assay.query.project_lookup import project_here
from assay.query.run import RunView
from assay.query.table import find_runs
from assay.store.layout import Project

_OPERATOR = re.compile(r"[=<>~]|\s(?:in|and|or)\b|^not\s")


def select_runs(addresses: Iterable[str], project: Project | None = None) -> list[RunView]:
    """Return the runs that addresses and expressions mean, each once, in the order given.

    An address is an id, a tag, `last`, `best:METRIC` or a path; an expression is one of `assay ls`
    (`tag = sweep and valid/acc > 0.9`), its runs come the oldest first. InputError for an address
    without a run and for an expression that no run fulfils.
    """
    found: dict[str, RunView] = {}
    for address in addresses:
        for run in _selected(address, project):
            found.setdefault(run.id, run)
    return list(found.values())


def _selected(address: str, project: Project | None) -> list[RunView]:
    try:
        return [find_run(address, project)]  # a tag may read like an expression
    except InputError:
        if not _OPERATOR.search(address):
            raise
    rows = find_runs(project or project_here(), where=address).rows
    if not rows:
        raise InputError(f"No run fulfils `{address}`.", fix="`assay ls EXPR` lists those that do")
    return [RunView(row.path) for row in rows]
