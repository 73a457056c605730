"""Routes of the list of runs: pages of rows, the columns there can be, curves."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Query, Request, Response

from assay.core.errors import InputError
from assay.formats.metrics_file import metrics_state
from assay.query.catalog import Asked
from assay.query.columns import COLUMNS, Column, spell_setting
from assay.query.curves import Curve, CurveView, draw_curves
from assay.query.groups import RunGroup, Spread
from assay.query.run_row import RunRow
from assay.query.shown import describe_shown
from assay.query.table import choose_columns
from assay.store.layout import RunFolder
from assay.web.answers import HomeOf, Model, as_json, make_router, spell_for_page
from assay.web.curve_bytes import pack_curves
from assay.web.site import Home

if TYPE_CHECKING:
    from assay.store.series import Series

MAX_LIMIT = 2_000
MAX_CURVE_RUNS = 1_000
MAX_CURVES = 20_000
MAX_POINTS = 8_000

router = make_router()


class BestValue(Model):
    metric: str
    mode: str
    value: float | str
    step: int | None


class RunLine(Model):
    """One run in a list; times are Unix seconds, `cells` a value for each column of the page."""

    id: str
    tag: str
    status: str
    reason: str
    kind: str
    created: float
    duration: float | None
    step: int
    attempts: int
    labels: list[str]
    best: BestValue | None
    cells: list[float | int | str | None]


class GroupLine(Model):
    """Runs that are alike, the newest first; `name` and `short` tell them from the other groups.

    `warnings` say what to know before the means are believed.
    """

    name: str
    short: str
    key: list[str | float | int | None]
    newest: RunLine
    ids: list[str]
    cells: list[Spread | float | int | str | None]
    warnings: list[str]


class ColumnHead(Model):
    name: str
    kind: str
    statistic: str


class RunsPage(Model):
    """Part of the selected rows; `reading` is the progress of a new index, as (done, total)."""

    version: int
    total: int
    runs: int
    columns: list[ColumnHead]
    rows: list[RunLine]
    groups: list[GroupLine]
    reading: tuple[int, int] | None


class ShownFacts(Model):
    """Facts of runs that are drawn together, by id; `short` are their names in few characters.

    `keys` differ between them, those with most values first; `values` are those of one key.
    """

    metrics: list[str]
    names: dict[str, str]
    short: dict[str, str]
    keys: list[str]
    values: dict[str, float | int | str | None]


class ColumnNames(Model):
    """Names available to a column, a filter or a panel.

    `version` is that of the list of runs, `best` the metrics that new runs call their best by, each
    with its mode: "min", "max", or "" where these runs differ in it.
    """

    version: int
    best: dict[str, str]

    facts: list[str]
    metrics: list[str]
    results: list[str]
    config: list[str]
    labels: list[str]


Ids = Annotated[str, Query(max_length=40_000, description="Ids with commas between.")]
Text = Annotated[str, Query(max_length=20_000)]
Texts = Annotated[list[str], Query(max_length=200)]
SortKeys = Annotated[list[str], Query(max_length=20)]  # SQLite joins at most 64 tables


def read_question(
    where: Text = "",
    grep: Text = "",
    sort: SortKeys = ["-created"],  # noqa: B006 - a default of the API, never changed
    column: Texts = [],  # noqa: B006
    group: Texts = [],  # noqa: B006
    tests: bool = False,
    archived: bool = False,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    limit: Annotated[int, Query(ge=0, le=MAX_LIMIT)] = 100,
) -> Asked:
    return Asked(
        where=where,
        grep=grep,
        sort=tuple(sort),
        columns=tuple(column),
        group=tuple(group),
        tests=tests,
        archived=archived,
        offset=offset,
        limit=limit,
    )


AskedOf = Annotated[Asked, Depends(read_question)]


@router.get("/api/runs", response_model=RunsPage)
def runs(home: HomeOf, question: AskedOf, choose: bool = False) -> Response:
    """Return a page of runs, or of groups of runs; `choose` the columns that tell most of them."""
    version = home.catalog.version  # before the rows are read: they are never older than it
    if choose:
        selection = home.catalog.select(question)
        names = choose_columns(selection, grouped=bool(question.group))
        question = replace(question, columns=names)
    page = home.catalog.page(question)
    return as_json(
        RunsPage(
            version=version,
            total=page.total,
            runs=page.runs,
            columns=list(map(ColumnHead.of, page.columns)),
            rows=[
                line_of(row.run, list(map(Column.spell, page.columns, row.cells)))
                for row in page.rows
            ],
            groups=[
                _group(*each, page.columns) for each in zip(page.groups, page.newest, strict=True)
            ],
            reading=home.catalog.reading,
        )
    )


@router.get("/api/runs/ids")
def run_ids(home: HomeOf, question: AskedOf) -> list[str]:
    """Return the ids of all runs that are asked for, in order: what "select all" means."""
    return home.catalog.ids(question)


@router.get("/api/columns")
def columns(home: HomeOf) -> ColumnNames:
    """Return everything that a column, a filter or a panel can be made of."""
    version = home.catalog.version
    names = home.catalog.names()
    return ColumnNames(
        version=version,
        best=home.catalog.best_modes(),
        facts=[*COLUMNS, "desc"],
        metrics=sorted(names.metrics),
        results=sorted(names.results),
        config=sorted(map(names.of_key, names.config)),
        labels=sorted(names.labels),
    )


@router.get("/api/shown")
def describe_runs(
    home: HomeOf,
    runs: Ids,
    by: Annotated[str, Query(max_length=2_000, description="A key whose values colour runs.")] = "",
) -> ShownFacts:
    """Return metrics, names and differing keys of runs that are drawn together."""
    found = describe_shown(home.catalog, split_ids(runs), by)
    names = {run_id: str(name) for run_id, name in found.names.items()}
    return ShownFacts.of(found, names=names, values=spell_for_page(dict(found.values)))


@router.get(
    "/api/curves",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": {}}},
        304: {"description": "Unchanged."},
    },
)
def curves(
    request: Request,
    home: HomeOf,
    runs: Ids,
    metric: Annotated[list[str], Query(max_length=500)],
    x: Annotated[str, Query(max_length=2_000)] = "",
    low: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    high: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 600,
    log: bool = False,
    branches: bool = False,
    smooth: Annotated[float, Query(ge=0, lt=1)] = 0.0,
    means: bool = False,
    since: Annotated[str, Query(max_length=60_000, description="ID:X with commas between.")] = "",
    width: Annotated[list[float], Query(max_length=500, description="One for each metric.")] = [],  # noqa: B006
) -> Response:
    """Return curves as bytes (`web/curve_bytes.py`), each reduced to `points` ranges of x.

    With `since` only what lies from there on is sent of those runs, in ranges of the widths that
    were sent before.
    """
    ids = split_ids(runs)
    if len(ids) > MAX_CURVE_RUNS or len(ids) * len(metric) > MAX_CURVES:
        raise InputError(
            f"At most {MAX_CURVE_RUNS:,} runs and {MAX_CURVES:,} curves are drawn at once.",
            fix="select fewer runs, or group them",
        )
    rows = home.catalog.rows(ids)
    folders = home.folders(rows)
    etag = _etag(home, rows, folders, str(request.url.query))
    # The same for an answer that has not changed: its headers replace those that a browser keeps.
    headers = {"etag": etag, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    view = CurveView(
        x=x,
        low=low,
        high=high,
        points=points,
        log=log,
        branches=branches,
        smooth=smooth,
        means=means,
    )
    widths = dict(zip(metric, width, strict=False))
    revisions: dict[str, int] = {}

    def read(run_id: str) -> Mapping[str, Series]:
        is_open = _is_open(rows[run_id])
        folder = folders[run_id]
        # An open run is read before its revision: what is new then comes with the next request.
        series = home.curves.series(folder, names, is_open=is_open, branches=branches)
        revisions[run_id] = home.curves.revision(folder) if is_open else 0
        return series

    names = _needed_metrics(metric, x)
    begins = _since(since)
    runs_by_begin: dict[float | None, list[str]] = {}
    for run_id in filter(rows.__contains__, ids):
        runs_by_begin.setdefault(begins.get(run_id, low), []).append(run_id)
    found: list[Curve] = []
    for begin, group in runs_by_begin.items():
        part = view if begin == low else replace(view, low=begin)
        found += draw_curves(group, read, metric, part, widths=widths)
    facts = {"missing": [each for each in ids if each not in rows], "revisions": revisions}
    body = pack_curves(found, facts)
    return Response(body, media_type="application/octet-stream", headers=headers)


def _is_open(row: RunRow) -> bool:
    return row.written.status == "running" and not row.written.error


def _needed_metrics(metrics: Sequence[str], x: str) -> Sequence[str] | None:
    """Return the metrics that are read of a run to draw some over `x`; None for all."""
    match x:
        case "elapsed":
            return None  # the first time of all metrics is 0
        case "" | "step" | "time":
            return metrics
        case _:
            return [*metrics, x]


def split_ids(text: str) -> list[str]:
    return list(dict.fromkeys(each for each in text.split(",") if each))


def line_of(row: RunRow, cells: Sequence[Any] = ()) -> RunLine:
    written = row.written
    best = None
    if written.best_value is not None:
        best = BestValue(
            metric=written.best_metric,
            mode=written.best_mode,
            value=spell_for_page(written.best_value),
            step=written.best_step,
        )
    return RunLine(
        id=row.id,
        tag=row.tag,
        status=row.status,
        reason=written.error or written.reason,
        kind=written.kind,
        created=written.created_ns / 1e9,
        duration=row.duration_s,
        step=_step(row),
        attempts=written.attempts,
        labels=row.labels,
        best=best,
        cells=spell_for_page(list(cells)),
    )


def _step(row: RunRow) -> int:
    """Return how far a run came; one that goes on has not written that yet, its metrics tell."""
    if row.written.status != "running":
        return row.written.step
    return max((each.step for each in row.summaries.values()), default=row.written.step)


def _group(group: RunGroup, newest: RunRow, columns: Sequence[Column]) -> GroupLine:
    cells = [
        cell if isinstance(cell, Spread) else spell_for_page(column.spell(cell))
        for column, cell in zip(columns, group.cells, strict=True)
    ]
    return GroupLine(
        name=str(group.name),
        short=group.short,
        key=spell_for_page(
            [each if isinstance(each, str) else spell_setting(each) for each in group.key]
        ),
        newest=line_of(newest),
        ids=list(group.ids),
        cells=cells,
        warnings=spell_for_page(list(group.warnings)),
    )


def _etag(
    home: Home, rows: Mapping[str, RunRow], folders: Mapping[str, RunFolder], query: str
) -> str:
    digest = hashlib.blake2b(query.encode(), digest_size=12)
    for run_id, row in rows.items():
        folder = folders[run_id]
        stamp: object
        if row.written.status == "running":
            stamp = home.curves.revision(folder, update=True)
        else:
            stamp = metrics_state(folder.metrics)
        digest.update(f"{run_id} {stamp}\n".encode())
    return f'"{digest.hexdigest()}"'


def _since(text: str) -> dict[str, float]:
    found = {}
    for part in filter(None, text.split(",")):
        run_id, _, value = part.partition(":")
        try:
            found[run_id] = float(value)
        except ValueError:
            raise InputError(f"`{part[:40]}` is no ID:X.", where="since") from None
        if not math.isfinite(found[run_id]):
            raise InputError(f"`{part[:40]}` is no ID:X.", where="since")
    return found
