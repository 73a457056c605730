"""Routes beside the runs: projects, inbox, saved views, and importances for a metric."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Path, Query
from pydantic import Field

from assay.core.errors import AssayError, InputError
from assay.query.importance import Importances, importances
from assay.query.inbox import Message, at_of
from assay.query.selection import LazyColumns
from assay.store.known_projects import all_projects, lost_roots
from assay.store.layout import Project, scan_runs
from assay.store.read_marks import mark_read
from assay.store.refresh_index import Synchronized
from assay.store.saved_views import (
    SavedView,
    ViewColumn,
    check_panels,
    read_view,
    remove_view,
    view_names,
    write_view,
)
from assay.web.answers import HomeOf, Model, SiteOf, make_router, spell_for_page
from assay.web.routes.live import WatchesOf
from assay.web.routes.runs import AskedOf
from assay.web.site import key_of

MAX_MESSAGES = 500
MAX_VALUES_RUNS = 20_000

router = make_router()

Name = Annotated[str, Path(max_length=64, pattern="^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class ProjectLine(Model):
    """One project of this user. `key` is "" for the one that the server was started in."""

    key: str
    name: str
    root: str
    runs: int
    newest: float | None
    is_lost: bool
    problem: str


class MessageFacts(Model):
    id: str
    kind: str
    at: float
    run: str
    tag: str
    text: str
    detail: str
    is_read: bool
    is_bad: bool


class InboxFacts(Model):
    messages: list[MessageFacts]
    unread: int


class Marked(Model):
    """Messages to mark; with `everything` all up to now are read."""

    ids: list[Annotated[str, Field(max_length=200)]] = Field(default=[], max_length=10_000)
    is_read: bool = True
    everything: bool = False


class ColumnOfView(Model):
    name: Annotated[str, Field(max_length=2_000)]
    width: Annotated[int, Field(ge=0, le=4_000)] = 0
    pinned: bool = False


class ViewFacts(Model):
    """Saved view of the runs; `panels` is a layout that only the page understands."""

    name: str = ""
    where: Annotated[str, Field(max_length=20_000)] = ""
    sort: list[Annotated[str, Field(max_length=2_000)]] = Field(default=[], max_length=20)
    group: list[Annotated[str, Field(max_length=2_000)]] = Field(default=[], max_length=20)
    columns: list[ColumnOfView] = Field(default=[], max_length=500)
    archived: bool = False
    tests: bool = False
    smooth: Annotated[float, Field(ge=0, lt=1)] = 0.0
    x: Annotated[str, Field(max_length=2_000)] = ""
    panels: Annotated[str, Field(max_length=500_000)] = ""


class ValuesFacts(Model):
    """Columns of values, one value or null for each run of `ids`."""

    ids: list[str]
    columns: dict[str, list[float | int | str | None]]
    total: int


@router.get("/api/projects")
def projects(site: SiteOf) -> list[ProjectLine]:
    """Return all projects of this user, the one of the server first; those that are gone last."""
    found = []
    for project in all_projects(site.first.project.root):
        problem, names = "", []
        try:
            names = [entry.name for entry in scan_runs(project.runs_dir)]
        except AssayError as error:
            problem = error.what
        key = key_of(project)
        found.append(
            ProjectLine(
                key="" if key == site.first.key else key,
                name=project.root.name,
                root=str(project.root),
                runs=len(names),
                newest=_began(max(names)) if names else None,
                is_lost=False,
                problem=problem,
            )
        )
    for root in lost_roots():
        found.append(
            ProjectLine(
                key=key_of(Project(root)),
                name=root.name,
                root=str(root),
                runs=0,
                newest=None,
                is_lost=True,
                problem="its folder is not there any more",
            )
        )
    return found


@router.get("/api/inbox")
def inbox(
    home: HomeOf,
    days: Annotated[float, Query(gt=0, le=36_500, description="How far back read ones go.")] = 14,
) -> InboxFacts:
    """Return the messages, the newest first."""
    now_ns = time.time_ns()
    found = home.inbox.messages(since_ns=now_ns - int(days * 86_400e9), now_ns=now_ns)
    return _inbox(found)


@router.get("/api/inbox/unread")
def unread(home: HomeOf) -> int:
    """Return how many messages nobody has read."""
    return sum(not message.is_read for message in home.inbox.messages())


@router.post("/api/inbox/marks")
def mark_messages(home: HomeOf, watches: WatchesOf, given: Marked) -> int:
    """Mark messages as read or unread, and return how many are unread now."""
    if given.everything:
        mark_read(home.project, [], until_ns=time.time_ns())
    if given.ids:
        moments = [(each, at_of(each)) for each in given.ids]
        mark_read(home.project, moments, is_read=given.is_read)
    watches.of(home).announce(Synchronized(), inbox=True)
    return sum(not message.is_read for message in home.inbox.messages())


@router.get("/api/views")
def views(home: HomeOf) -> list[str]:
    """Return the names of the saved views."""
    return view_names(home.project)


@router.get("/api/views/{name}")
def view(home: HomeOf, name: Name) -> ViewFacts:
    """Return a saved view."""
    found = read_view(home.project, name)
    return ViewFacts.of(found, columns=[ColumnOfView.of(each) for each in found.columns])


@router.put("/api/views/{name}")
def save_view(home: HomeOf, watches: WatchesOf, name: Name, given: ViewFacts) -> None:
    """Save a view as a file of the project, in the place of one of its name."""
    columns = tuple(
        ViewColumn(name=each.name, width=each.width, pinned=each.pinned) for each in given.columns
    )
    write_view(
        home.project,
        SavedView(
            name=name,
            where=given.where,
            sort=tuple(given.sort),
            group=tuple(given.group),
            columns=columns,
            archived=given.archived,
            tests=given.tests,
            smooth=given.smooth,
            x=given.x,
            panels=check_panels(given.panels),
        ),
    )
    watches.of(home).announce(Synchronized(), views=True)


@router.delete("/api/views/{name}")
def delete_view(home: HomeOf, watches: WatchesOf, name: Name) -> None:
    """Delete a saved view."""
    remove_view(home.project, name)
    watches.of(home).announce(Synchronized(), views=True)


@router.get("/api/values")
def values(home: HomeOf, question: AskedOf) -> ValuesFacts:
    """Return the values of columns for all selected runs, up to 20,000, for a scatter plot."""
    whole = replace(question, limit=MAX_VALUES_RUNS, offset=0)
    ids = home.catalog.ids(whole)
    found = home.catalog.values(whole, list(question.columns))
    columns = map(home.catalog.column, question.columns)
    return ValuesFacts(
        ids=ids[:MAX_VALUES_RUNS],
        columns={
            name: [
                spell_for_page(_spell_for_plot(column.spell(value)))
                for value in values[:MAX_VALUES_RUNS]
            ]
            for name, column, values in zip(question.columns, columns, found, strict=True)
        },
        total=len(ids),
    )


def _metric(
    metric: Annotated[str, Query(max_length=2_000, description="A column of numbers.")],
) -> str:
    return metric


@router.get("/api/importance")
def importance(
    home: HomeOf, question: AskedOf, metric: Annotated[str, Depends(_metric)]
) -> Importances:
    """Return the importance of each config key for a metric: rank correlation and eta squared."""
    catalog = home.catalog
    names = catalog.names()
    keys = list(map(names.of_key, names.config))
    if catalog.column(metric).field is None:
        raise InputError(f"No run has anything called `{metric}`.", fix="choose one of the metrics")
    columns = LazyColumns(catalog.select(question), keys)
    return importances(columns, columns.selection.values([catalog.column(metric)])[0])


def _spell_for_plot(value: Any) -> Any:
    """Return a value as a scatter plot has it, which has no place for nan and infinities."""
    return value if not isinstance(value, float) or math.isfinite(value) else None


def _began(folder: str) -> float | None:
    """Return the Unix time at which a run began, to the minute, from its folder's name.

    None for a name without a time. No file is opened.
    """
    try:
        return time.mktime(time.strptime(folder[:11], "%y%m%d-%H%M"))
    except (ValueError, OverflowError):
        return None


def _inbox(found: list[Message]) -> InboxFacts:
    return InboxFacts(
        messages=[MessageFacts.of(each, at=each.at_ns / 1e9) for each in found[:MAX_MESSAGES]],
        unread=sum(not each.is_read for each in found),
    )
