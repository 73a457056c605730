"""Shared parts of routes: the project of a request, errors as JSON, models as bytes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from assay.core.errors import AssayError, InputError, RecordError
from assay.query.catalog import Catalog
from assay.query.expression import ExpressionError
from assay.query.run_row import RunRow
from assay.web.site import Home, ProjectSite


class Model(BaseModel):
    """Base of everything that is sent: names in JSON are those of TypeScript."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, ser_json_inf_nan="strings", extra="forbid"
    )


class ErrorBody(Model):
    """An error: what is wrong, where, how to fix it; `start` and `end` are a place in what was
    sent."""

    what: str
    where: str = ""
    fix: str = ""
    start: int | None = None
    end: int | None = None


class MissingError(InputError):
    """Something is asked for that is not there."""


class ConflictError(InputError):
    """Edited data was changed by somebody else meanwhile."""


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Something in the request is wrong."},
    404: {"model": ErrorBody, "description": "It is not there."},
    422: {
        "model": ErrorBody,
        "description": "It has another form, or a record is damaged.",
    },
}
"""The answers that every route may give beside its own."""


def problem_of(error: AssayError) -> tuple[int, ErrorBody]:
    """Return the status and the body for an error that was raised on purpose."""
    status = 400 if isinstance(error, InputError) else 500
    if isinstance(error, MissingError):
        status = 404
    if isinstance(error, ConflictError):
        status = 409
    if isinstance(error, RecordError):
        status = 422  # the record is damaged; the server is not
    place = (error.start, error.end) if isinstance(error, ExpressionError) else (None, None)
    return status, ErrorBody(
        what=error.what, where=error.where, fix=error.fix, start=place[0], end=place[1]
    )


def as_json(model: BaseModel, status: int = 200) -> Response:
    """Return a model as it is: hot routes need not have it validated again."""
    return Response(model.model_dump_json(by_alias=True), status, media_type="application/json")


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


def row_of(catalog: Catalog, run_id: str) -> RunRow:
    """Return one run by id; MissingError when there is none, also after another look at the
    folders."""
    found = catalog.rows([run_id])
    if run_id not in found:
        catalog.synchronize()
        found = catalog.rows([run_id])
    if run_id not in found:
        raise MissingError(
            f"There is no run {run_id} here: it was removed, or lies in another project."
        )
    return found[run_id]
