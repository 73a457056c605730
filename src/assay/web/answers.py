"""Shared parts of routes: the project of a request, errors as JSON, models as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from assay.core.errors import AssayError, ConflictError, InputError, RecordError
from assay.formats.json_codec import spell_numbers
from assay.query.catalog import Catalog
from assay.query.columns import plain_value
from assay.query.expression import ExpressionError
from assay.query.run import RunView
from assay.query.run_row import RunRow
from assay.web.site import Home, ProjectSite

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer that JavaScript tells from its neighbours."""


class Model(BaseModel):
    """Base of everything that is sent: names in JSON are those of TypeScript."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="strings", extra="forbid"
    )

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """Return a model with the fields of `source` that have its names, and with `others`."""
        names = cls.model_fields.keys() - others.keys()
        return cls(**{name: getattr(source, name) for name in names}, **others)


class ErrorBody(Model):
    """An error: its cause, its place, and a fix; `start` and `end` are offsets in what was sent."""

    what: str
    where: str = ""
    fix: str = ""
    start: int | None = None
    end: int | None = None


class MissingError(InputError):
    """Something is asked for that is not there."""


class BusyError(AssayError):
    """The server does as much at once as it is meant to; the same request may succeed later."""


def problem_of(error: AssayError) -> tuple[int, ErrorBody]:
    """Return the status and the body for an error that was raised on purpose."""
    # Of the classes that an error belongs to, the first one says it. A damaged record is no fault
    # of the server.
    statuses: dict[type[AssayError], int] = {
        MissingError: 404,
        ConflictError: 409,
        RecordError: 422,
        BusyError: 503,
        InputError: 400,
    }
    status = next((code for kind, code in statuses.items() if isinstance(error, kind)), 500)
    place = (error.start, error.end) if isinstance(error, ExpressionError) else (None, None)
    return status, ErrorBody(
        what=error.what, where=error.where, fix=error.fix, start=place[0], end=place[1]
    )


_ANY_JSON = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="strings"))


class AnyText(JSONResponse):
    """JSON in which half of a surrogate pair is escaped; pydantic refuses the whole answer.

    Python has such text for a file name that is not UTF-8, and a record may hold it.
    """

    def render(self, content: Any) -> bytes:
        try:
            return _ANY_JSON.dump_json(content)
        except ValueError:
            plain = json.loads(json.dumps(content), parse_constant=str)
            return json.dumps(plain, separators=(",", ":")).encode()


def spell_for_page(value: Any) -> Any:
    """Return plain data with the numbers that JavaScript lacks as texts.

    Those are what JSON lacks, and integers that a 64-bit float does not hold.
    """
    match value:
        case bool():
            return value
        case int() if abs(value) > MAX_SAFE_INTEGER:
            return str(value)
        case dict():
            return {key: spell_for_page(item) for key, item in value.items()}
        case list():
            return [spell_for_page(item) for item in value]
        case _:
            return spell_numbers(plain_value(value))


def parse_from_page(value: Any) -> Any:
    """Return a value that the page sent: `spell_for_page` of an integer as that integer."""
    is_long = isinstance(value, str) and re.fullmatch("-?[0-9]{16,1000}", value) is not None
    return int(value) if is_long and abs(int(value)) > MAX_SAFE_INTEGER else value


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Something in the request is wrong."},
    404: {"model": ErrorBody, "description": "It is not there."},
    422: {
        "model": ErrorBody,
        "description": "It has another form, or a record is damaged.",
    },
}
"""The answers that every route may give beside its own."""


_CONFLICT = {"model": ErrorBody, "description": "Somebody else was faster."}


def make_router(*, conflicts: bool = False) -> APIRouter:
    """Return a router whose routes declare the errors that they may answer with."""
    problems = {**_PROBLEMS, 409: _CONFLICT} if conflicts else _PROBLEMS
    return APIRouter(responses=problems, default_response_class=AnyText)


def as_json(model: BaseModel, status: int = 200) -> Response:
    """Return a model as it is: hot routes need not have it validated again."""
    try:
        return Response(model.model_dump_json(by_alias=True), status, media_type="application/json")
    except ValueError:
        return AnyText(model.model_dump(mode="json", by_alias=True), status)


def site_of(request: Request) -> ProjectSite:
    site = request.app.state.site
    assert isinstance(site, ProjectSite)
    return site


def home_of(
    site: Annotated[ProjectSite, Depends(site_of)],
    project: Annotated[
        str, Query(max_length=64, description="Key of a project; the first one.")
    ] = "",
) -> Home:
    home = site.home(project)
    home.ready()
    return home


SiteOf = Annotated[ProjectSite, Depends(site_of)]
HomeOf = Annotated[Home, Depends(home_of)]
RunId = Annotated[str, Path(max_length=64, pattern="^[a-z0-9]+$")]


def row_of(catalog: Catalog, run_id: str) -> RunRow:
    """Return one run by id, after a new scan of the folders if need be; MissingError if absent."""
    found = catalog.rows([run_id])
    if run_id not in found:
        catalog.synchronize()
        found = catalog.rows([run_id])
    if run_id not in found:
        raise MissingError(
            f"There is no run {run_id} here: it was removed, or lies in another project."
        )
    return found[run_id]


def view_of(home: Home, run_id: str) -> RunView:
    """Return a run to look at; MissingError when it is not there, or went away at this moment."""
    row = row_of(home.catalog, run_id)
    try:
        return RunView(row.path)
    except RecordError:
        raise
    except AssayError as error:
        raise MissingError(
            f"The run {run_id} is gone.", fix="it was removed while it was shown"
        ) from error


def read_or(problems: list[str], read: Callable[[], Any], nothing: Any) -> Any:
    """Return what `read` returns; of what is damaged nothing, and the page says so."""
    try:
        return read()
    except (AssayError, OSError) as error:
        problems.append(error.what if isinstance(error, AssayError) else str(error))
        return nothing


def plain_text(data: bytes, *, is_cut: bool = False) -> Response:
    """Return bytes as a text that no browser takes for anything else."""
    headers = {"x-cut": "1"} if is_cut else {}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)
