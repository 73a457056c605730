"""Fuzzed requests from the API's description, and damaged records, without a server error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from assay.core.facts import Ended
from assay.record import edits
from assay.store.job_journal import QUEUE_DIR_VARIABLE
from assay.store.layout import RunFolder
from assay.web.access import Keys, Rules
from assay.web.app import make_api
from assay.web.contract import openapi
from assay.web.pages import Files
from run_folders import id_of, make_project, make_run, tell_now

pytestmark = pytest.mark.slow

EXAMPLES = 8
SCHEMA = schemathesis.openapi.from_dict(json.loads(openapi()))
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}
RUN_ROUTES = ("", "/config", "/code", "/code/file?path=train.py", "/text?name=log")
LIST_ROUTES = (
    "/api/runs?column=lr&column=loss&column=note",
    "/api/runs?group=config&column=lr",
    "/api/runs?where=loss+%3C+3",
    "/api/columns",
    "/api/shown?runs={run}",
    "/api/curves?runs={run}&metrics=loss",
    "/api/compare?runs={run},{other}",
    "/api/values?runs={run}&keys=lr",
    "/api/importance?metric=loss",
    "/api/inbox",
)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "bytes": lambda data: b"\xff\xfe\x00{{{[[[" * 20,
    "other": lambda data: b'{"a": [1, null, {"b": -1e999}]}\n[]\n"x"\nnull\n',
    "zeros": lambda data: bytes(len(data)),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path, Path]]:
    """A client without the guard, and two run folders of its project."""
    root = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(QUEUE_DIR_VARIABLE, str(root / "queue"))
        patch.setenv("HOME", str(root))
        patch.setenv("XDG_DATA_HOME", str(root / "data"))
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        project = make_project(root / "project")
        folders = [
            make_run(
                project,
                tag=tag,
                points={"loss": [1.0, 0.5, float("nan")]},
                config=f"lr = 0.1\n[model]\nwidth = {width}\n",
            )
            for tag, width in (("one", 32), ("two", 64))
        ]
        for each in folders:
            tell_now(each, Ended(status="failed", step=2, reason="ValueError: no", traceback="T"))
            RunFolder(each).log.write_text("hello\n", encoding="utf-8")
            edits.note(RunFolder(each), "a note")
        api = make_api(project, Keys(b"secret", ""), Rules("assay"), Files("", is_built=False))
        with TestClient(api, raise_server_exceptions=False) as client:
            made = {"name": "known", "columns": ["best loss"], "runs": [id_of(folders[0])]}
            assert client.post("/api/tables", json=made).status_code < 300
            yield client, *folders


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_a_request_made_from_the_description_meets_no_error_of_the_server(
    place: tuple[TestClient, Path, Path], label: str
) -> None:
    client, folder, _ = place
    operation = OPERATIONS[label]
    known = {"run_id": id_of(folder), "name": "known", "digest": "0" * 64}
    cases = st.one_of(
        operation.as_strategy(),
        operation.as_strategy(GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # a request is short: shrinking it takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, is_known=st.booleans())
    def ask(case: schemathesis.Case, is_known: bool) -> None:
        if is_known:
            case.path_parameters = {
                name: known.get(name, value) for name, value in case.path_parameters.items()
            }
        given = case.as_transport_kwargs(base_url="http://testserver")
        sent = {name: given[name] for name in ("params", "headers", "json") if given.get(name)}
        if isinstance(given.get("data"), bytes):
            sent["content"] = given["data"]
        assume(len(str(sent.get("params", ""))) < 10_000)  # the client takes no longer address
        answer = client.request(given["method"], given["url"], **sent)
        assert answer.status_code < 500, (given, answer.text[:500])

    ask()


@pytest.mark.parametrize("damage", sorted(DAMAGES))
@pytest.mark.parametrize(
    "name", ["run.json", "config.toml", "events.jsonl", "edits.jsonl", "metrics/1.rows", "log.txt"]
)
def test_a_record_with_a_damaged_file_is_shown_with_what_is_left(
    place: tuple[TestClient, Path, Path], name: str, damage: str
) -> None:
    client, folder, other = place
    file = folder / name
    assert file.exists(), sorted(each.name for each in folder.iterdir())
    kept = file.read_bytes()
    file.write_bytes(DAMAGES[damage](kept))
    try:
        run = id_of(folder)
        for path in [f"/api/runs/{run}{each}" for each in RUN_ROUTES] + list(LIST_ROUTES):
            answer = client.get(path.format(run=run, other=id_of(other)))
            assert answer.status_code < 500, (path, answer.text[:500])
    finally:
        file.write_bytes(kept)
