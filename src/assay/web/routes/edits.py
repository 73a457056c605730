"""Routes that edit, archive and remove runs, by way of `record/edits` and `store/trash`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import Field

from assay.core.errors import AssayError, InputError
from assay.core.ids import id_of_folder
from assay.query.run_row import ARCHIVED
from assay.record import edits
from assay.store.trash import bring_back, list_removed, remove_run
from assay.web.answers import (
    ErrorBody,
    HomeOf,
    MissingError,
    Model,
    RunId,
    make_router,
    parse_from_page,
    problem_of,
    row_of,
    view_of,
)
from assay.web.routes.live import WatchesOf
from assay.web.routes.runs import RunLine, line_of
from assay.web.site import Home

MAX_RUNS = 10_000
MAX_TEXT = 200_000

router = make_router(conflicts=True)


class Note(Model):
    text: str = Field(max_length=MAX_TEXT)


class Tag(Model):
    tag: str = Field(max_length=1_000)


class Description(Model):
    """A description; `seen` is the digest of the one that it replaces."""

    text: str = Field(max_length=MAX_TEXT)
    seen: str


class Result(Model):
    """A corrected result, or a new one; an integer beyond 2^53 is a text of its digits."""

    value: float | int | bool | str | None


class Act(Model):
    """Action on many runs at once."""

    act: Literal["archive", "unarchive", "remove", "bring-back", "label", "unlabel"]
    runs: list[str] = Field(max_length=MAX_RUNS)
    labels: list[Annotated[str, Field(max_length=200)]] = Field(default=[], max_length=100)


class EditRefusal(Model):
    run: str
    problem: ErrorBody


class Done(Model):
    """Runs that were changed, as they are now (without removed ones), and those that refused."""

    runs: list[RunLine]
    ids: list[str]
    refused: list[EditRefusal]


@router.post("/api/runs/{run_id}/notes")
def add_note(home: HomeOf, watches: WatchesOf, run_id: RunId, given: Note) -> RunLine:
    """Add a note. Notes are never replaced: each is one more."""
    view = view_of(home, run_id)
    edits.note(view.folder, given.text)
    return _announce(home, watches, run_id)


@router.put("/api/runs/{run_id}/tag")
def set_tag(home: HomeOf, watches: WatchesOf, run_id: RunId, given: Tag) -> RunLine:
    """Give a run another title."""
    view = view_of(home, run_id)
    edits.retag(view.folder, given.tag, old=view.tag)
    return _announce(home, watches, run_id)


@router.put("/api/runs/{run_id}/desc")
def set_description(home: HomeOf, watches: WatchesOf, run_id: RunId, given: Description) -> RunLine:
    """Replace the description, unless somebody else has done so since it was read."""
    view = view_of(home, run_id)
    edits.describe(view.folder, given.text, title=view.tag or view.id, revision=given.seen)
    return _announce(home, watches, run_id)


@router.put("/api/runs/{run_id}/results/{name:path}")
def correct_result(
    home: HomeOf,
    watches: WatchesOf,
    run_id: RunId,
    name: Annotated[str, Path(max_length=1_000)],
    given: Result,
) -> RunLine:
    """Correct a result; what was recorded is kept."""
    view = view_of(home, run_id)
    edits.correct(view.folder, name, parse_from_page(given.value), old=view.values.get(name))
    return _announce(home, watches, run_id)


@router.post("/api/acts")
def act(home: HomeOf, watches: WatchesOf, given: Act) -> Done:
    """Do something with many runs: what one of them refuses stops none of the others."""
    ids = list(dict.fromkeys(given.runs))
    refused = []
    done = []
    folders = (
        {each.id: each for each in list_removed(home.project)} if given.act == "bring-back" else {}
    )
    for run_id in ids:
        try:
            if given.act == "bring-back":
                if run_id not in folders:
                    raise MissingError(f"No removed run is called {run_id}.")
                bring_back(folders[run_id])
            else:
                _do(home, run_id, given)
            done.append(run_id)
        except AssayError as error:
            refused.append(EditRefusal(run=run_id, problem=problem_of(error)[1]))
    some = None if given.act in ("remove", "bring-back") else _folders(home, done)
    watches.of(home).announce(home.catalog.synchronize(some))
    rows = home.catalog.rows(done)
    return Done(
        runs=[line_of(rows[run_id]) for run_id in done if run_id in rows], ids=done, refused=refused
    )


def _do(home: Home, run_id: str, given: Act) -> None:
    row = row_of(home.catalog, run_id)
    folder = home.folder(row.written.folder)
    match given.act:
        case "archive":
            edits.add_labels(folder, [ARCHIVED])
        case "unarchive":
            edits.remove_labels(folder, [ARCHIVED])
        case "label":
            edits.add_labels(folder, given.labels)
        case "unlabel":
            edits.remove_labels(folder, given.labels)
        case "remove":
            if id_of_folder(folder.path.name) != run_id:
                raise InputError(
                    f"The folder of {run_id} was renamed.",
                    where=str(folder.path),
                    fix="remove it by hand",
                )
            remove_run(folder)
        case _:
            raise InputError(f"There is no act {given.act}.")


def _folders(home: Home, ids: list[str]) -> list[str]:
    return [row.written.folder for row in home.catalog.rows(ids).values()]


def _announce(home: Home, watches: Any, run_id: str) -> RunLine:
    """Return the run as it is now, and tell all pages that it changed."""
    watches.of(home).announce(home.catalog.synchronize(_folders(home, [run_id])))
    return line_of(row_of(home.catalog, run_id))
