"""Routes of comparing runs: in what they differ, folded to what is not equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from fastapi import Query

from assay.core.errors import AssayError, InputError
from assay.query.compare import DifferingKey, MetricRow, RunComparison, compare
from assay.query.run import RunView
from assay.web.answers import HomeOf, MissingError, Model, make_router, spell_for_page, view_of
from assay.web.routes.run import VerdictFacts, verdict_facts
from assay.web.routes.runs import Ids, RunLine, SpreadCell, line_of, split_ids, spread_cell

MAX_RUNS = 50

router = make_router()


class KeyLine(Model):
    key: str
    values: list[str | float | int | None]


class FileLine(Model):
    path: str
    changes: list[str]


class NumberCell(Model):
    last: float | str
    min: float | str
    max: float | str


class TestCell(Model):
    """Welch's test of a run's repeats against the first run's: two-sided p, difference of means."""

    p: float
    difference: float
    freedom: float | str


class MetricLine(Model):
    """Values of the runs; `groups` are means over the repeats of each, which `tests` compare."""

    name: str
    values: list[NumberCell | None]
    groups: list[SpreadCell | None]
    tests: list[TestCell | None]


class PartingCell(Model):
    step: int
    metric: str


class CompareFacts(Model):
    """In what runs differ. The first one is what the others are measured against."""

    runs: list[RunLine]
    gone: list[str]
    sentence: str
    config: list[KeyLine]
    equal_config: int
    environment: list[KeyLine]
    equal_environment: int
    code: list[FileLine]
    equal_code: int
    code_missing: list[str]
    metrics: list[MetricLine]
    partings: list[PartingCell | None]
    repeats: list[int]
    verdicts: list[VerdictFacts]


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
    return CompareFacts(
        runs=[line_of(rows[view.id]) for view in views if view.id in rows],
        gone=gone,
        sentence=found.sentence,
        config=[_key_line(row) for row in found.config],
        equal_config=found.equal_config,
        environment=[_key_line(row) for row in found.environment],
        equal_environment=found.equal_environment,
        code=[FileLine(path=row.path, changes=list(row.changes)) for row in found.code],
        equal_code=found.equal_code,
        code_missing=list(found.code_missing),
        metrics=[_metric(row, found) for row in found.metrics],
        partings=[
            PartingCell(step=each.step, metric=each.metric) if each is not None else None
            for each in found.partings
        ],
        repeats=list(found.repeats),
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


def _key_line(row: DifferingKey) -> KeyLine:
    return KeyLine(key=row.key, values=spell_for_page(list(row.values)))


def _metric(row: MetricRow, found: RunComparison) -> MetricLine:
    return MetricLine(
        name=row.name,
        values=[
            NumberCell(last=each.last, min=each.min, max=each.max) if each is not None else None
            for each in row.summaries
        ],
        groups=[
            spread_cell(each) if each is not None else None
            for each in (row.groups or (None,) * len(found.runs))
        ],
        tests=[
            TestCell(p=each.p, difference=each.difference, freedom=each.freedom)
            if each is not None and math.isfinite(each.difference)
            else None
            for each in (row.tests or (None,) * len(found.runs))
        ],
    )
