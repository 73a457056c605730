"""Routes of the session: making one, and what a page has to know at first."""

from __future__ import annotations

import getpass

from fastapi import Request, Response

from assay.core.version import version
from assay.query.rerun import platform_refusal
from assay.web.access import LOGIN, WRITE_HEADER, Keys, Rules, session_cookie
from assay.web.answers import ErrorBody, Model, SiteOf, as_json, make_router

router = make_router()


class Login(Model):
    """The code of a link, or the token."""

    token: str


class SiteFacts(Model):
    """Facts that a page needs first.

    `write` is the value of the header of each change; `queue_refusal` says why no run can be put in
    line from the page, "" when it can.
    """

    project: str
    key: str
    root: str
    version: str
    user: str
    is_read_only: bool
    queue_refusal: str
    write_header: str
    write: str


@router.get(LOGIN, include_in_schema=False)
def login_page(request: Request) -> Response:
    return Response(request.app.state.files.login_page(LOGIN), media_type="text/html")


@router.post(LOGIN, include_in_schema=False)
def login(request: Request, given: Login) -> Response:
    """Make a session of the code of a link, or of the token."""
    keys: Keys = request.app.state.keys
    rules: Rules = request.app.state.rules
    if not keys.admits(given.token):
        problem = ErrorBody(
            what="This link was used before, or is of an earlier start.",
            fix="The terminal in which `assay ui` runs shows a fresh one.",
        )
        return as_json(problem, 401)
    answer = Response(status_code=204)
    answer.headers["set-cookie"] = session_cookie(
        keys, rules, is_secure=request.url.scheme == "https"
    )
    return answer


@router.get("/api/site")
def site(request: Request, site: SiteOf, project: str = "") -> SiteFacts:
    """Return what a page has to know at first."""
    home = site.home(project)
    keys: Keys = request.app.state.keys
    rules: Rules = request.app.state.rules
    return SiteFacts(
        project=home.project.root.name,
        key="" if home is site.first else home.key,
        root=str(home.project.root),
        version=version(),
        user=_user(),
        is_read_only=rules.is_read_only,
        queue_refusal=queue_refusal(rules),
        write_header=WRITE_HEADER,
        write="" if rules.is_read_only else keys.write,
    )


def queue_refusal(rules: Rules) -> str:
    """Return why no run can be put in line from the page, "" when it can."""
    if rules.is_read_only:
        return "This server was started read-only."
    if not rules.is_local:
        return "Runs are queued from the page only of a server that this machine alone reaches."
    return platform_refusal()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return ""
