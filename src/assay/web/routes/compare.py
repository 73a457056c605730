"""Routes of comparing runs: in what they differ, folded to what is not equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from assay.core.errors import AssayError, InputError
from assay.query.compare import (
    CurveDivergence,
    DifferingFile,
    DifferingKey,
    MetricRow,
    compare,
)
from assay.query.run import RunView
from assay.query.shown import describe_shown
from assay.web.answers import HomeOf, MissingError, Model, make_router, view_of
from assay.web.routes.run import VerdictFacts, verdict_facts
from assay.web.routes.runs import Ids, RunLine, line_of, split_ids

MAX_RUNS = 50

router = make_router()


class CompareFacts(Model):
    """In what runs differ. The first one is what the others are measured against.

    `names` tell them apart, by id; `warnings` are doubts in the means and tests.
    """

    runs: list[RunLine]
    names: dict[str, str]
    gone: list[str]
    sentence: str
    config: tuple[DifferingKey, ...]
    equal_config: int
    environment: tuple[DifferingKey, ...]
    equal_environment: int
    code: tuple[DifferingFile, ...]
    equal_code: int
    code_missing: tuple[str, ...]
    metrics: tuple[MetricRow, ...]
    partings: tuple[CurveDivergence | None, ...]
    repeats: tuple[int, ...]
    verdicts: list[VerdictFacts]
    warnings: tuple[str, ...]


@router.get("/api/compare")
def compare_runs(
    home: HomeOf,
    runs: Ids,
    base: Annotated[
        str, Query(max_length=64, description="The run to measure against; the first one.")
    ] = "",
) -> CompareFacts:
    """Return in what 2 to 50 runs differ; those that are gone are named and left out."""
    ids = split_ids(runs)
    if not 2 <= len(ids) <= MAX_RUNS:
        raise InputError(
            f"2 to {MAX_RUNS} runs are compared at once, not {len(ids)}.", where="runs"
        )
    if base in ids:
        ids = [base, *(each for each in ids if each != base)]
    views, gone = _views(home, ids)
    found = compare(views, home.catalog)
    rows = home.catalog.rows([view.id for view in views])
    shown = describe_shown(home.catalog, [view.id for view in views])
    return CompareFacts.of(
        found,
        runs=[line_of(rows[view.id]) for view in views if view.id in rows],
        names={run_id: str(name) for run_id, name in shown.names.items()},
        gone=gone,
        verdicts=[verdict_facts(each) for each in found.verdicts],
    )


def _views(home: HomeOf, ids: Sequence[str]) -> tuple[list[RunView], list[str]]:
    """Return the runs that are there, at least two, and the ids of the others."""
    views: list[RunView] = []
    gone = []
    for run_id in ids:
        try:
            views.append(view_of(home, run_id))
        except AssayError:
            gone.append(run_id)
    if len(views) < 2:
        raise MissingError(
            "Fewer than two of these runs are there.", fix="they may have been removed"
        )
    return views, gone
