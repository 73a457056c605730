"""The application: routes behind the guard, errors as JSON, the page at every address of a page."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from assay.core.errors import AssayError, RecordError
from assay.core.version import version
from assay.store.layout import Project
from assay.web.access import Guard, Keys, Rules
from assay.web.answers import ErrorBody, as_json, problem_of
from assay.web.compression import Compression
from assay.web.live import Watches
from assay.web.pages import PAGES, Files
from assay.web.queueing import RerunSubmitter
from assay.web.routes import (
    compare,
    edits,
    live,
    projects,
    queue,
    run,
    run_files,
    runs,
    session,
    tables,
)
from assay.web.site import ProjectSite

ROUTERS = (
    session.router,
    runs.router,
    run.router,
    run_files.router,
    edits.router,
    compare.router,
    tables.router,
    projects.router,
    queue.router,
    live.router,
)


def make_app(
    project: Project,
    keys: Keys,
    rules: Rules,
    files: Files | None = None,
    watches: Watches | None = None,
) -> ASGIApp:
    """Return the whole application for the projects of this user, `project` first."""
    api = make_api(project, keys, rules, files or Files.read())
    api.state.watches = watches or Watches()
    return Guard(Compression(api), keys, rules, api.state.files.login_page)


def make_api(project: Project, keys: Keys, rules: Rules, files: Files) -> FastAPI:
    """Return the routes without the guard."""
    api = FastAPI(
        title="assay",
        version=version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=_life,
    )
    api.state.site = ProjectSite(project)
    api.state.watches = Watches()
    api.state.keys = keys
    api.state.rules = rules
    api.state.files = files
    api.state.reruns = RerunSubmitter()
    for router in ROUTERS:
        # `include_router` makes each route anew at the first request, in 0.3 s.
        api.router.routes.extend(router.routes)
    api.add_exception_handler(AssayError, _assay_error)
    api.add_exception_handler(OSError, _os_error)
    api.add_exception_handler(RequestValidationError, _wrong_form)
    api.add_exception_handler(HTTPException, _http_error)
    for path in PAGES:
        api.add_api_route(path, _page, methods=["GET", "HEAD"], include_in_schema=False)
    api.add_api_route("/{path:path}", _file, methods=["GET", "HEAD"], include_in_schema=False)
    return api


@contextlib.asynccontextmanager
async def _life(api: FastAPI) -> AsyncIterator[None]:
    # Runs are read, and the pool of threads is made, while the browser starts and logs in.
    await run_in_threadpool(api.state.site.first.look)
    yield
    api.state.reruns.close()
    api.state.watches.close()
    api.state.site.close()


def _page(request: Request) -> Response:
    files: Files = request.app.state.files
    request.app.state.site.first.look()  # what the page asks first waits for it
    body = files.document(request.url.path, request.state.nonce)
    return Response(body, media_type="text/html")


def _file(request: Request) -> Response:
    files: Files = request.app.state.files
    found = files.by_path.get(str(request.scope["path"]))
    if found is None:
        if request.scope["path"].startswith(("/api/", "/assets/")):
            return as_json(ErrorBody(what="There is nothing at this address."), 404)
        body = files.document(request.url.path, request.state.nonce)
        return Response(body, 404, media_type="text/html")
    headers = {"content-type": found.content_type, "vary": "accept-encoding"}
    is_hashed = request.scope["path"].startswith("/assets/")
    headers["cache-control"] = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
    if found.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, headers={**headers, "content-encoding": "gzip"})
    return Response(found.data, headers=headers)


def _assay_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AssayError)
    status, problem = problem_of(error)
    is_unreadable = isinstance(error, RecordError) or status == 500
    if is_unreadable and _is_gone(request):
        return _answer_gone(request)
    return as_json(problem, status)


def _os_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if _is_gone(request):
        return _answer_gone(request)
    what = f"A file cannot be read: {error.strerror or error}."
    return as_json(ErrorBody(what=what, where=str(error.filename or "")), 500)


def _is_gone(request: Request) -> bool:
    """Return whether the run of a request was removed while it was read, which is no damage."""
    run_id = request.path_params.get("run_id")
    if run_id is None:
        return False
    home = request.app.state.site.home(request.query_params.get("project", ""))
    row = home.catalog.rows([run_id]).get(run_id)
    return row is None or not row.path.is_dir()


def _answer_gone(request: Request) -> Response:
    what = f"The run {request.path_params['run_id']} is gone."
    return as_json(ErrorBody(what=what, fix="it was removed while it was read"), 404)


def _wrong_form(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    where = ".".join(str(part) for part in first.get("loc", ())[1:])
    return as_json(
        ErrorBody(what=f"The request is not as it should be: {first['msg']}.", where=where), 422
    )


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = as_json(ErrorBody(what=f"{error.detail}."), error.status_code)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer
