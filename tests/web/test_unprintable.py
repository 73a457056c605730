"""Names that no UTF-8 holds, in paths and in records, on every route that is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from assay.store.job_journal import QUEUE_DIR_VARIABLE
from assay.store.known_projects import remember
from assay.web.access import Keys, Rules
from assay.web.app import make_api
from assay.web.contract import openapi
from assay.web.pages import Files
from run_folders import HALF, id_of, make_project, make_unprintable_run

pytestmark = pytest.mark.slow

ROUTES = {
    "/api/columns": "",
    "/api/compare": "?runs={run},{other}",
    "/api/curves": "?runs={run}&metric={half}",
    "/api/importance": "?metric={half}",
    "/api/inbox": "?days=3000",
    "/api/inbox/unread": "",
    "/api/shown": "?runs={run},{other}",
    "/api/projects": "",
    "/api/queue": "",
    "/api/queue/counts": "",
    "/api/queue/jobs/{job}/text": "",
    "/api/queue/rerun": "?runs={run}",
    "/api/runs": "?column={half}&column=lr&group=config",
    "/api/runs/ids": "",
    "/api/runs/{run_id}": "",
    "/api/runs/{run_id}/blobs/{digest}": "",
    "/api/runs/{run_id}/code": "",
    "/api/runs/{run_id}/code/file": "?path={half}",
    "/api/runs/{run_id}/config": "",
    "/api/runs/{run_id}/text": "?name=log",
    "/api/site": "",
    "/api/tables": "",
    "/api/tables/{name}": "",
    "/api/tables/{name}/export": "?form=csv",
    "/api/tables/{name}/history": "",
    "/api/values": "?column={half}",
    "/api/views": "",
    "/api/views/{name}": "",
}


@dataclass(frozen=True)
class Place:
    """A client, two runs of its project, and two of the project `key`, whose path is no text."""

    client: TestClient
    root: Path
    runs: list[str]
    key: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("unprintable")
    with pytest.MonkeyPatch.context() as patch:
        use_lists_of(root, patch)
        projects = [make_project(root / name) for name in ("plain", os.fsdecode(b"bytes\xff"))]
        runs = []
        for project in projects:
            runs += [id_of(make_unprintable_run(project)) for _ in range(2)]
            remember(project.root)
        api = make_api(projects[0], Keys(b"secret", ""), Rules("assay"), Files("", is_built=False))
        with TestClient(api, raise_server_exceptions=False) as client:
            lines = client.get("/api/projects").json()
            key = next(line["key"] for line in lines if line["name"] != "plain")
            yield Place(client, root, runs, key)


def use_lists_of(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(QUEUE_DIR_VARIABLE, str(root / "queue"))
    patch.setenv("XDG_DATA_HOME", str(root / "data"))


@pytest.fixture(autouse=True)
def lists(place: Place, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of projects and of the queue that the module made, in place of the test's own."""
    use_lists_of(place.root, monkeypatch)


def test_every_route_that_is_read_is_tried() -> None:
    paths = json.loads(openapi())["paths"]

    assert {path for path, ways in paths.items() if "get" in ways} == set(ROUTES)


@pytest.mark.parametrize("is_other", [False, True], ids=["this", "bytes"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_name_that_is_no_text_breaks_no_answer(place: Place, route: str, is_other: bool) -> None:
    run, other = place.runs[2:] if is_other else place.runs[:2]
    path = route.format(run_id=run, job="absent", name="absent", digest="0" * 64)
    asked = ROUTES[route].format(run=run, other=other, half=quote(HALF, errors="surrogateescape"))
    if is_other and "project" in str(json.loads(openapi())["paths"][route]["get"]):
        asked += f"{'&' if asked else '?'}project={place.key}"

    answer = place.client.get(path + asked)

    assert answer.status_code < 500, answer.text[:500]
    if answer.headers["content-type"] == "application/json":
        json.loads(answer.content.decode("utf-8"))


def test_a_project_that_cannot_be_named_is_shown_among_all(
    place: Place,
) -> None:
    lines = place.client.get("/api/projects").json()

    assert [line["name"] for line in lines] == ["plain", "bytes\udcff"]
    assert [line["runs"] for line in lines] == [2, 2]
