"""Access to the server by visitor, page and host name: every rule on every route."""

from __future__ import annotations

import json
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from assay.store.layout import Project
from assay.web.access import PUBLIC, Keys, Rules, kept_secret
from assay.web.app import make_api
from assay.web.contract import openapi
from assay.web.pages import Files, base_of
from run_folders import make_project, make_run
from web.serving import Server, serving

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def declared(router: Any) -> Iterator[APIRoute]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from declared(route.original_router)


def routes() -> list[tuple[str, str]]:
    """Return every method and address of the application, with its parameters filled in."""
    api = make_api(Project(Path(".")), Keys(b""), Rules(""), Files.read())
    found = {(method, filled(route.path)) for route in declared(api) for method in route.methods}
    # Methods that a route does not know are refused by the same rules, before anybody says that it
    # does not know them.
    found |= {(method, path) for _, path in found for method in METHODS}
    files = Files.read().by_path
    return sorted(
        found
        | {("GET", path) for path in files}
        | {("GET", "/no/such/page"), ("POST", "/api/none")}
    )


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "a", path)


ROUTES = routes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    project = make_project(tmp_path_factory.mktemp("access"))
    make_run(project, tag="secret-tag")
    with serving(project.root) as server:
        yield server


def test_the_table_of_routes_has_all_that_the_api_describes() -> None:
    described = json.loads(openapi())["paths"]
    pairs = {
        (method.upper(), filled(path)) for path, methods in described.items() for method in methods
    }
    assert pairs
    assert pairs <= set(ROUTES)


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:{port}",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "127.0.0.1@evil.test",
        "evil.test#127.0.0.1",
        "evil.test/127.0.0.1",
        "",
        "0.0.0.0",
        "[::2]",
        "127.0.0.1, evil.test",
    ],
)
def test_a_foreign_host_is_refused_on_every_route(server: Server, host: str) -> None:
    for method, path in ROUTES:
        answer = server.ask(method, path, headers={"Host": host.format(port=server.port)})
        assert answer.status in (400, 421), (method, path, answer.status)
        assert b"secret-tag" not in answer.body


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:80", "LOCALHOST:9", "[::1]:7341"])
def test_the_names_of_this_machine_are_known_whatever_the_port(server: Server, host: str) -> None:
    assert server.ask("GET", "/api/runs", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.test",
        "null",
        "http://127.0.0.1:1",
        "file://",
        "http://localhost.evil.test",
        "https://",
    ],
)
def test_a_foreign_origin_is_refused_on_every_route(server: Server, origin: str) -> None:
    for method, path in ROUTES:
        answer = server.ask(method, path, headers={"Origin": origin})
        assert answer.status == 403, (method, path, answer.status)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_that_another_site_makes_is_refused_on_every_route(
    server: Server, site: str
) -> None:
    for method, path in ROUTES:
        answer = server.ask(
            method, path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
        )
        assert answer.status == 403, (method, path, answer.status)


def test_a_link_from_elsewhere_leads_to_a_page_and_to_nothing_else(server: Server) -> None:
    follows = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert server.ask("GET", "/", headers=follows).status == 200
    assert server.ask("GET", "/api/runs", headers=follows).status == 403
    assert server.ask("GET", "/", headers={**follows, "Sec-Fetch-Dest": "iframe"}).status == 403


def test_without_a_session_every_route_but_the_login_is_refused(server: Server) -> None:
    for method, path in ROUTES:
        answer = server.ask(method, path, session=False)
        if path in PUBLIC:
            continue
        assert answer.status == 401, (method, path, answer.status)
        assert b"secret-tag" not in answer.body


@pytest.mark.parametrize(
    "cookie", ["", "x", "{name}=", "{name}=0", "{name}={almost}", "other={value}"]
)
def test_a_cookie_that_is_not_the_session_opens_nothing(server: Server, cookie: str) -> None:
    name, _, value = server.cookie.partition("=")
    text = cookie.format(
        name=name, value=value, almost=value[:-1] + ("0" if value[-1] != "0" else "1")
    )
    assert server.ask("GET", "/api/runs", session=False, headers={"Cookie": text}).status == 401


def test_a_change_needs_the_header_of_the_page_beside_the_cookie(server: Server) -> None:
    changes = [
        (method, path) for method, path in ROUTES if method in ("POST", "PUT", "PATCH", "DELETE")
    ]
    for method, path in changes:
        if path in PUBLIC:
            continue
        for headers in ({}, {"X-Assay-Write": "guess"}):
            answer = server.ask(
                method, path, session=False, headers={"Cookie": server.cookie, **headers}
            )
            assert answer.status == 403, (method, path, answer.status)


def test_what_a_form_or_a_beacon_can_send_changes_nothing(server: Server) -> None:
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ):
        answer = server.ask(
            "POST", "/login", b'{"token": "x"}', session=False, headers={"Content-Type": kind}
        )
        assert answer.status in (401, 422)


def test_every_answer_says_what_a_browser_may_do_with_it(server: Server) -> None:
    for method, path in ROUTES:
        if method not in ("GET", "HEAD") or path == "/api/live":
            continue
        headers = server.ask(method, path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"


def test_the_session_cookie_is_out_of_the_reach_of_scripts_and_of_other_sites(
    server: Server,
) -> None:
    answer = server.ask("POST", "/login", {"token": fresh_link(server)}, session=False)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path" not in cookie  # so that its path is where the page lies, behind whatever proxy


def fresh_link(server: Server) -> str:
    """Return the token of the newest link, once it is one that nobody has used."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        links = [line.strip() for line in server.said if "/login#" in line]
        token = links[-1].rpartition("#")[2]
        if token not in server.used:
            return token
        time.sleep(0.02)
    raise TimeoutError("the terminal shows no fresh link")


def test_a_link_opens_one_session_and_then_the_terminal_has_another(server: Server) -> None:
    used = server.link.rpartition("#")[2]
    assert server.ask("POST", "/login", {"token": used}, session=False).status == 401
    fresh = fresh_link(server)
    assert fresh != used
    assert server.ask("POST", "/login", {"token": fresh}, session=False).status == 204
    assert server.ask("POST", "/login", {"token": fresh}, session=False).status == 401


@pytest.mark.parametrize("size", ["8388609", "99999999999999999999", "-1", "a"])
def test_a_body_that_is_too_long_is_refused_before_it_is_read(server: Server, size: str) -> None:
    answer = server.ask("POST", "/login", session=False, headers={"Content-Length": size})
    assert answer.status in (400, 413)


def test_a_body_without_a_length_is_refused(server: Server) -> None:
    answer = server.ask(
        "POST",
        "/login",
        session=False,
        headers={"Transfer-Encoding": "chunked", "Content-Length": "0"},
    )
    assert answer.status in (400, 411)


def test_a_read_only_server_changes_nothing_whoever_asks(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with serving(project.root, "--read-only") as server:
        for method, path in ROUTES:
            if method in ("POST", "PUT", "PATCH", "DELETE") and path not in PUBLIC:
                answer = server.ask(method, path, headers={"X-Assay-Write": "x"})
                assert answer.status == 403
                assert "read-only" in answer.json["what"]


def test_a_token_that_lasts_opens_the_api_and_is_on_no_command_line(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    token = "a-token-of-more-than-sixteen-characters"
    with serving(project.root, variables={"ASSAY_UI_TOKEN": token}) as server:
        bearer = {"Authorization": f"Bearer {token}"}
        assert server.ask("GET", "/api/runs", session=False, headers=bearer).status == 200
        assert (
            server.ask(
                "GET", "/api/runs", session=False, headers={"Authorization": f"Bearer {token}x"}
            ).status
            == 401
        )
        assert server.ask("POST", "/login", {"token": token}, session=False).status == 204
        assert token not in Path(f"/proc/{server.process.pid}/cmdline").read_text(encoding="utf-8")
        assert token not in "".join(server.said)


def test_a_token_may_stand_in_a_file(tmp_path: Path, assay_ui) -> None:
    project = make_project(tmp_path / "project")
    file = tmp_path / "token"
    file.write_text("another-token-that-is-long-enough\n", encoding="utf-8")
    with serving(project.root, "--token-file", str(file)) as server:
        bearer = {"Authorization": "Bearer another-token-that-is-long-enough"}
        assert server.ask("GET", "/api/site", session=False, headers=bearer).status == 200


def test_beyond_this_machine_nobody_is_served_without_a_token(tmp_path: Path, assay_ui) -> None:
    project = make_project(tmp_path)
    done = assay_ui(project.root, "--host", "0.0.0.0")
    assert done.returncode == 2
    assert "needs a token" in done.stdout
    assert "ASSAY_UI_TOKEN" in done.stdout


def test_a_short_token_is_refused(tmp_path: Path, assay_ui) -> None:
    project = make_project(tmp_path)
    done = assay_ui(project.root, variables={"ASSAY_UI_TOKEN": "short"})
    assert done.returncode == 2
    assert "too short" in done.stdout


def test_a_port_that_is_taken_is_said_in_one_line(server: Server, tmp_path: Path, assay_ui) -> None:
    project = make_project(tmp_path)
    done = assay_ui(project.root, "--port", str(server.port))
    assert done.returncode == 2
    assert f"127.0.0.1:{server.port} is taken" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_name_that_a_proxy_uses_is_let_in_when_it_is_named(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with serving(project.root, "--allow-host", "hub.example.org") as server:
        assert server.ask("GET", "/api/runs", headers={"Host": "hub.example.org"}).status == 200
        assert (
            server.ask("GET", "/api/runs", headers={"Host": "hub.example.org:8443"}).status == 200
        )
        assert server.ask("GET", "/api/runs", headers={"Host": "example.org"}).status == 421
        own = {"Host": "hub.example.org", "Origin": "https://hub.example.org"}
        assert server.ask("GET", "/api/runs", headers=own).status == 200


def test_behind_a_path_of_a_proxy_everything_is_found(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with serving(project.root, "--prefix", "/user/me/proxy/7341") as server:
        page = server.ask("GET", "/user/me/proxy/7341/runs/abc")
        assert page.status == 200
        assert b'<base href="../"' in page.body
        assert server.ask("GET", "/user/me/proxy/7341/api/runs").status == 200
        assert server.ask("GET", "/api/runs").status == 200  # a proxy that takes its path off
        assert "/user/me/proxy/7341/login#" in server.link


@pytest.mark.parametrize(
    ("path", "base"), [("/", "./"), ("/inbox", "./"), ("/runs/a", "../"), ("/a/b/c", "../../")]
)
def test_a_page_finds_the_root_of_the_site_from_its_own_address(path: str, base: str) -> None:
    assert base_of(path) == base


def test_the_secret_of_sessions_is_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "state" / "ui-secret"
    first = kept_secret(file)
    assert kept_secret(file) == first
    assert len(first) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_secret_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 64)
    (tmp_path / "ui-secret").symlink_to(other)
    assert kept_secret(tmp_path / "ui-secret") != b"x" * 32
    assert other.read_bytes() == b"x" * 64
