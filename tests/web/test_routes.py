"""Routes of the pages over real HTTP: run, comparisons, tables, inbox, views, projects, changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn

from assay.core.facts import Ended
from assay.query import catalog
from assay.query.catalog import Asked, Page
from assay.query.job_queue import QueueChanges
from assay.query.run import RunView
from assay.record import edits
from assay.store import refresh_index
from assay.store.layout import Project, RunFolder
from assay.store.read_record import read_record
from assay.store.refresh_index import Synchronized
from assay.store.tables import read_history
from assay.web import site
from assay.web.live import IDLE_S, Watch, _Looked
from assay.web.routes import runs as run_routes
from assay.web.serving import QuietServer, listen
from assay.web.site import Home
from run_folders import SECOND, hold_lease, id_of, make_project, make_run, tell_now
from web.serving import PATIENCE_S, Server, serving

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("routes") / "project")


@pytest.fixture(scope="module")
def runs(project: Project) -> dict[str, str]:
    """Runs by tag: two that differ, one that failed, one whose record is damaged."""
    good = make_run(
        project, tag="good", points={"valid/acc": [0.5, 0.9]}, config="seed = 0\nlr = 0.1\n"
    )
    other = make_run(
        project, tag="other", points={"valid/acc": [0.5, 0.8]}, config="seed = 0\nlr = 0.2\n"
    )
    failed = make_run(
        project, tag=HOSTILE, status="failed", age_s=5, ran_s=5, attempt={"reason": HOSTILE}
    )
    tell_now(
        failed, Ended(status="failed", step=1, reason=HOSTILE, traceback="Traceback: " + HOSTILE)
    )
    damaged = make_run(project, tag="damaged", points={"loss": [1.0]}, config="lr = [[[")
    (damaged / "events.jsonl").write_bytes(b"\xff\xfe{{{\n")
    return {
        name: id_of(path)
        for name, path in {
            "good": good,
            "other": other,
            "failed": failed,
            "damaged": damaged,
        }.items()
    }


@pytest.fixture(scope="module")
def server(
    project: Project, runs: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("data")
    with serving(project.root, variables={"XDG_DATA_HOME": str(data)}) as server:
        yield server


def test_a_run_says_everything_that_fits_on_a_page(server: Server, runs: dict[str, str]) -> None:
    found = server.get(f"/api/runs/{runs['good']}")

    assert found["line"]["tag"] == "good"
    assert [(each["name"], each["last"], each["max"]) for each in found["metrics"]] == [
        ("valid/acc", 0.9, 0.9)
    ]
    assert f"assay log {runs['good']}" in [each["line"] for each in found["commands"]]
    rows = server.get(f"/api/runs/{runs['good']}/config")["rows"]
    assert {row["key"]: row["value"] for row in rows} == {"seed": "0", "lr": "0.1"}


def test_a_killed_attempt_has_the_time_that_it_ran_though_the_wall_clock_was_set(
    server: Server, project: Project
) -> None:
    killed = make_run(project, tag="killed", ran_s=None, age_s=8 * 3600)
    started_ns = RunView(killed).file.created_ns
    steady_ns = started_ns + 40 * SECOND
    hold_lease(killed, process_start="1", beat_ns=time.time_ns(), steady_ns=steady_ns)

    found = server.get(f"/api/runs/{id_of(killed)}")

    (attempt,) = found["attempts"]
    assert found["line"]["status"] == "killed"
    assert 40 <= attempt["duration"] < 100
    assert 40 <= found["line"]["duration"] < 100


def test_integers_that_no_float_holds_reach_the_page_with_all_digits(
    server: Server, project: Project
) -> None:
    long, longer = 2**53 + 1, 2**70 + 1
    folder = make_run(
        project,
        tag="long",
        config=f"width = {long}\n",
        values={"params": long, "inner": {"all": [longer, 3]}, "yes": True},
        attempt={"seeds": {"torch": 2**62 + 1, "python": 1}, "seedless_hash": "long"},
    )
    run = id_of(folder)

    facts = server.get(f"/api/runs/{run}")
    page = server.get("/api/runs", where=f"id = {run}", column=["width", "params"])
    group = server.get("/api/runs", where=f"id = {run}", column=["width"], group="config")
    values = server.get("/api/values", where=f"id = {run}", column=["width", "params"])
    results = {each["name"]: each["value"] for each in facts["results"]}

    assert page["rows"][0]["cells"] == [str(long), str(long)]
    assert group["groups"][0]["cells"] == [str(long)]
    assert values["columns"] == {"width": [str(long)], "params": [str(long)]}
    assert results == {"params": str(long), "inner": {"all": [str(longer), 3]}, "yes": True}
    assert facts["attempts"][0]["seeds"] == {"torch": str(2**62 + 1), "python": 1}
    answer = server.ask("PUT", f"/api/runs/{run}/results/params", {"value": str(long + 1)})
    assert answer.status == 200, answer.body
    assert RunView(folder).values["params"] == long + 1
    shutil.rmtree(folder)


def test_a_damaged_record_has_its_own_words_and_the_rest_is_there(
    server: Server, runs: dict[str, str]
) -> None:
    found = server.get(f"/api/runs/{runs['damaged']}")
    assert found["metrics"][0]["name"] == "loss"
    assert server.get(f"/api/runs/{runs['damaged']}/config")["problem"]


def test_a_run_that_is_not_there_is_a_404_that_says_so(
    server: Server, runs: dict[str, str]
) -> None:
    for path in ("/api/runs/zzzz", "/api/runs/zzzz/config", "/api/runs/zzzz/code", "/api/compare"):
        answer = server.ask("GET", path, **({"runs": "zzzz,yyyy"} if "compare" in path else {}))
        assert answer.status == 404, (path, answer.body)
        assert answer.json["what"]


def test_a_run_that_vanishes_while_it_is_shown_is_gone_and_no_error_of_the_server(
    server: Server, project: Project
) -> None:
    folder = make_run(project, tag="vanishing", config="lr = 0.1\n")
    run = id_of(folder)
    assert server.ask("GET", f"/api/runs/{run}").status == 200
    os.rename(folder, folder.with_name(".gone"))
    try:
        for path in ("/config", "/code", "/text?name=log", ""):
            answer = server.ask("GET", f"/api/runs/{run}{path}")
            assert answer.status < 500, (path, answer.body)
        assert answer.status == 404
        assert run in answer.json["what"]
    finally:
        shutil.rmtree(folder.with_name(".gone"))


def test_a_text_of_a_run_is_read_by_its_name_and_never_by_a_path(
    server: Server, runs: dict[str, str]
) -> None:
    for name in ("../run.json", "/etc/passwd", "run.json", "config.toml"):
        assert server.ask("GET", f"/api/runs/{runs['good']}/text", name=name).status == 404
    for path in ("../../run.json", "/etc/passwd"):
        assert (
            server.ask("GET", f"/api/runs/{runs['good']}/code/file?path={quote(path)}").status
            == 404
        )
    digest = hashlib.sha256(b"").hexdigest()
    assert server.ask("GET", f"/api/runs/{runs['good']}/blobs/{digest}").status == 404


def test_hostile_texts_come_as_data_that_no_browser_takes_for_a_page(
    server: Server, runs: dict[str, str]
) -> None:
    answer = server.ask("GET", f"/api/runs/{runs['failed']}")
    assert answer.json["line"]["tag"] == HOSTILE
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_runs_are_compared_with_the_one_that_is_chosen(
    server: Server, runs: dict[str, str]
) -> None:
    both = f"{runs['good']},{runs['other']}"

    found = server.get("/api/compare", runs=both, base=runs["other"])

    assert [run["tag"] for run in found["runs"]] == ["other", "good"]
    assert found["config"] == [{"key": "lr", "values": ["0.2", "0.1"]}]
    assert found["partings"] == [None, {"step": 2, "metric": "valid/acc"}]
    gone = server.get("/api/compare", runs=f"{both},zzzz")
    assert gone["gone"] == ["zzzz"]
    assert server.ask("GET", "/api/compare", runs=runs["good"]).status == 400


def test_a_table_is_made_of_runs_changed_and_exported(
    server: Server, project: Project, runs: dict[str, str]
) -> None:
    made = server.ask(
        "POST",
        "/api/tables",
        {"name": "of-runs", "columns": ["valid/acc"], "runs": [runs["good"], runs["other"]]},
    )
    assert made.status == 200, made.body
    table = made.json
    assert sorted(row["cells"][0]["text"] for row in table["rows"]) == ["good", "other"]
    column, row = table["columns"][1]["key"], table["rows"][0]["key"]

    changes = [
        {"what": "column", "column": column, "best": "max"},
        {"what": "add-column", "text": "remark"},
    ]
    changed = server.ask(
        "POST", "/api/tables/of-runs/changes", {"changes": changes, "revision": table["revision"]}
    ).json
    assert sum(row["cells"][1]["isBest"] for row in changed["rows"]) == 1
    cell = {"what": "cell", "row": row, "column": "remark", "text": HOSTILE}
    assert server.ask("POST", "/api/tables/of-runs/changes", {"changes": [cell]}).status == 200
    latex = server.ask("GET", "/api/tables/of-runs/export", form="latex").body.decode()
    assert r"\textbf{0.9}" in latex
    html = server.ask("GET", "/api/tables/of-runs/export", form="html").body.decode()
    assert "<strong>0.9</strong>" in html and HOSTILE not in html
    history = server.get("/api/tables/of-runs/history", row=row, column="remark")
    assert [each["new"] for each in history] == [HOSTILE]
    assert list(read_history(project, "of-runs"))


def test_a_table_that_somebody_else_changed_is_not_overwritten(server: Server) -> None:
    first = server.ask("POST", "/api/tables", {"name": "shared"}).json
    change = {"changes": [{"what": "title", "text": "theirs"}], "revision": first["revision"]}
    assert server.ask("POST", "/api/tables/shared/changes", change).status == 200

    late = {"changes": [{"what": "title", "text": "ours"}], "revision": first["revision"]}
    answer = server.ask("POST", "/api/tables/shared/changes", late)

    assert answer.status == 409
    assert server.get("/api/tables/shared")["title"] == "theirs"


def test_the_inbox_says_why_a_run_died_until_it_is_read(
    server: Server, runs: dict[str, str]
) -> None:
    found = server.get("/api/inbox")
    message = next(each for each in found["messages"] if each["run"] == runs["failed"])
    assert (
        message["kind"] == "failed"
        and message["text"] == HOSTILE
        and "Traceback" in message["detail"]
    )
    assert found["unread"] == server.get("/api/inbox/unread") >= 1

    server.ask("POST", "/api/inbox/marks", {"ids": [message["id"]]})
    assert server.get("/api/inbox/unread") == found["unread"] - 1
    server.ask("POST", "/api/inbox/marks", {"everything": True})
    assert server.get("/api/inbox/unread") == 0
    server.ask("POST", "/api/inbox/marks", {"ids": [message["id"]], "isRead": False})
    assert server.get("/api/inbox/unread") == 1


def test_a_view_is_a_file_of_the_project_that_comes_back_as_it_was(
    server: Server, project: Project
) -> None:
    view = {
        "where": "tag = good",
        "sort": ["-valid/acc"],
        "columns": [{"name": "lr", "width": 80, "pinned": True}],
    }

    assert server.ask("PUT", "/api/views/mine", view).status == 200

    assert (project.assay_dir / "views" / "mine.toml").is_file()
    found = server.get("/api/views/mine")
    assert {key: found[key] for key in view} == view
    assert server.get("/api/views") == ["mine"]
    assert server.ask("DELETE", "/api/views/mine").status == 200
    assert server.get("/api/views") == []


def test_a_label_that_the_list_still_shows_is_put_on_again_after_it_was_taken_off_elsewhere(
    server: Server, project: Project
) -> None:
    folder = make_run(project, tag="edited")
    act = {"act": "label", "runs": [id_of(folder)], "labels": ["kept"]}
    server.ask("POST", "/api/acts", act)
    edits.remove_labels(RunFolder(folder), ["kept"])  # by the command line; no list knows of it yet

    labelled = server.ask("POST", "/api/acts", act).json

    assert labelled["runs"][0]["labels"] == ["kept"]


def test_of_two_pages_that_describe_a_run_at_once_one_is_told(
    server: Server, project: Project
) -> None:
    run = id_of(make_run(project, tag="edited"))
    seen = server.get(f"/api/runs/{run}")["descDigest"]
    answers: dict[str, int] = {}

    def save(text: str) -> None:
        given = {"text": text, "seen": seen}
        answers[text] = server.ask("PUT", f"/api/runs/{run}/desc", given).status

    pages = [threading.Thread(target=save, args=(f"text {i}",)) for i in range(6)]
    for page in pages:
        page.start()
    for page in pages:
        page.join()

    (kept,) = [text for text, status in answers.items() if status == 200]
    assert [*answers.values()].count(409) == 5
    assert server.get(f"/api/runs/{run}")["desc"] == kept


def test_edits_of_a_run_are_kept_and_can_be_taken_back(server: Server, project: Project) -> None:
    run = id_of(make_run(project, tag="edited"))
    server.ask("POST", f"/api/runs/{run}/notes", {"text": "looks good"})
    server.ask("PUT", f"/api/runs/{run}/tag", {"tag": "renamed"})
    seen = server.get(f"/api/runs/{run}")["descDigest"]
    assert server.ask("PUT", f"/api/runs/{run}/desc", {"text": "why", "seen": seen}).status == 200
    assert server.ask("PUT", f"/api/runs/{run}/desc", {"text": "other", "seen": seen}).status == 409
    labelled = server.ask(
        "POST", "/api/acts", {"act": "label", "runs": [run, "zzzz"], "labels": ["kept"]}
    ).json
    assert labelled["ids"] == [run] and [each["run"] for each in labelled["refused"]] == ["zzzz"]

    found = server.get(f"/api/runs/{run}")
    assert [note["text"] for note in found["notes"]] == ["looks good"]
    assert (found["line"]["tag"], found["desc"], found["line"]["labels"]) == (
        "renamed",
        "why",
        ["kept"],
    )

    assert server.ask("POST", "/api/acts", {"act": "remove", "runs": [run]}).json["ids"] == [run]
    assert server.ask("GET", f"/api/runs/{run}").status == 404
    assert server.ask("POST", "/api/acts", {"act": "bring-back", "runs": [run]}).json["ids"] == [
        run
    ]
    assert server.get(f"/api/runs/{run}")["line"]["tag"] == "renamed"


def test_a_filter_with_a_mistake_says_where(server: Server) -> None:
    for path in ("/api/runs", "/api/values", "/api/importance"):
        answer = server.ask("GET", path, where="tag = = 3", metric="valid/acc")
        assert answer.status in (400, 422)
        assert "^" in answer.json["where"] or answer.json["what"]


def test_the_projects_of_the_user_are_listed_the_own_one_first(
    server: Server, project: Project
) -> None:
    found = server.get("/api/projects")
    assert found[0]["root"] == str(project.root)
    assert found[0]["key"] == ""
    assert found[0]["runs"] >= 4


def test_what_a_metric_depends_on_and_the_values_of_columns(
    server: Server, runs: dict[str, str]
) -> None:
    found = server.get("/api/values", column=["lr", "valid/acc"], where="lr > 0 and valid/acc > 0")
    assert sorted(zip(found["columns"]["lr"], found["columns"]["valid/acc"], strict=True)) == [
        (0.1, 0.9),
        (0.2, 0.8),
    ]
    keys = server.get("/api/importance", metric="valid/acc")["keys"]
    assert [each["key"] for each in keys] == ["lr"]


def test_columns_are_of_the_selection_and_names_of_groups_are_the_same_on_every_page(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path / "project")
    for seed in range(2):
        for width in (32, 64, 128):
            make_run(
                project,
                tag="new",
                points={"valid/acc": [0.5 + seed / 4]},
                config=f"seed = {seed}\nact = 'relu'\n[model]\nwidth = {width}\n",
                attempt={"seedless_hash": str(width)},
                status="failed" if width == 32 else "finished",
            )
        points = {"aa/x": [1.0], "bb/x": [2.0], "cc/x": [3.0]}
        make_run(project, tag="old", points=points, config=f"seed = {seed}\n")
    with serving(project.root) as server:
        asked = {"where": "tag = new", "choose": True}
        grouped = {**asked, "group": "config", "sort": "model.width"}
        whole = server.get("/api/runs", **grouped)
        pages = [server.get("/api/runs", **grouped, offset=i, limit=1) for i in range(3)]
        one, *_ = server.get("/api/runs", **asked)["rows"]
        ids = [run for group in whole["groups"] for run in group["ids"]]
        shown = server.get("/api/shown", runs=",".join(ids), by="model.width")

    assert [column["name"] for column in whole["columns"]] == ["valid/acc", "model.width"]
    names = [group["name"] for group in whole["groups"]]
    assert names == ["width=32", "width=64", "width=128"]
    assert [page["groups"][0]["name"] for page in pages] == names
    assert [group["warnings"] for group in whole["groups"]] == [
        ["none of its 2 runs has finished: 2 failed"],
        [],
        [],
    ]
    assert one["cells"] == [0.75, 128, 1]
    assert set(shown["names"].values()) == {
        f"width={width} seed={seed}" for width in (32, 64, 128) for seed in (0, 1)
    }
    assert shown["metrics"] == ["valid/acc"] and shown["keys"] == ["model.width", "seed"]
    assert sorted(shown["values"].values()) == [32, 32, 64, 64, 128, 128]


def test_every_request_waits_for_the_first_look_at_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of a new project is not made yet when several requests of a page arrive at once."""
    monkeypatch.setattr(site, "FIRST_LOOK_S", 60.0)
    home = Home.of(make_project(tmp_path / "project"))
    begun, go = threading.Event(), threading.Event()

    def slow() -> Synchronized:
        begun.set()
        go.wait(60)
        home.catalog.readable.set()
        return Synchronized()

    home.catalog.synchronize = slow  # type: ignore[method-assign]
    first = threading.Thread(target=home.ready)
    first.start()
    begun.wait(60)
    second = threading.Thread(target=home.ready)
    second.start()
    second.join(0.2)
    assert second.is_alive()

    go.set()
    for thread in (first, second):
        thread.join(60)
        assert not thread.is_alive()


def test_the_newest_runs_are_shown_while_older_ones_are_read_into_a_new_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project")
    older, newer = (make_run(project, age_s=age_s) for age_s in (3600, 60))
    go = threading.Event()

    def read(folder: RunFolder, *arguments: object) -> object:
        if folder.path == older:
            go.wait(60)
        return read_record(folder, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(site, "FIRST_LOOK_S", 60.0)
    monkeypatch.setattr(refresh_index, "_BATCH", 1)
    monkeypatch.setattr(refresh_index, "read_record", read)
    home = Home.of(project)
    watch, looked = Watch(home), _Looked()

    home.ready()

    assert home.is_reading
    assert home.catalog.ids(Asked()) == [id_of(newer)]
    assert watch._event(looked) == {"version": home.catalog.version}
    go.set()
    while home.is_reading:
        time.sleep(0.01)
    assert home.catalog.ids(Asked()) == [id_of(newer), id_of(older)]
    assert watch._event(looked)["version"] == home.catalog.version
    home.catalog.close()


def test_a_page_hears_of_runs_that_another_request_has_read(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    make_run(project)
    home = Home.of(project)
    watch, looked = Watch(home), _Looked()
    watch._event(looked)
    make_run(project)

    home.catalog.synchronize()

    assert watch._event(looked)["version"] == home.catalog.version
    assert "version" not in watch._event(looked)
    home.catalog.close()


def test_a_stream_begins_with_the_version_that_answers_are_compared_with(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    make_run(project)
    with (
        serving(project.root) as server,
        closing(socket.create_connection(("127.0.0.1", server.port))) as page,
    ):
        answers = [server.get("/api/columns"), server.get("/api/runs")]
        head = f"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie: {server.cookie}\r\n\r\n"
        page.sendall(head.encode())
        said = b""
        while b"\ndata: " not in said or not said.endswith(b"\n"):
            said += page.recv(4096)
    first = json.loads(said.split(b"\ndata: ", 1)[1].splitlines()[0])
    assert first == {"opened": True, "version": answers[0]["version"]}
    assert answers[0]["version"] == answers[1]["version"] == 1


def test_rows_that_are_read_while_a_run_comes_are_of_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project")
    make_run(project)
    home = Home.of(project)
    home.catalog.synchronize()
    read = home.catalog.page

    def read_and_meanwhile(asked: Asked) -> Page:
        page = read(asked)
        make_run(project)
        home.catalog.synchronize()
        return page

    monkeypatch.setattr(home.catalog, "page", read_and_meanwhile)
    answer = json.loads(bytes(run_routes.runs(home, Asked()).body))

    assert (answer["total"], answer["version"]) == (1, 1)
    assert home.catalog.version == 2
    home.catalog.close()


def test_what_is_known_of_the_runs_is_forgotten_before_their_version_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project")
    make_run(project, config="lr = 0.1\n")
    home = Home.of(project)
    home.catalog.synchronize()
    home.catalog.names()
    known, versions = catalog._Known, list[int]()
    monkeypatch.setattr(catalog, "_Known", lambda: versions.append(home.catalog.version) or known())
    make_run(project, config="width = 3\n")

    home.catalog.synchronize()

    assert versions == [1]
    assert home.catalog.version == 2
    assert "width" in home.catalog.names().config
    home.catalog.close()


def test_runs_behind_a_link_are_heard_of_too(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    make_run(project)
    elsewhere = tmp_path / "elsewhere"
    project.runs_dir.rename(elsewhere)
    project.runs_dir.symlink_to(elsewhere, target_is_directory=True)
    home = Home.of(project)
    watch, looked = Watch(home), _Looked()
    home.ready()
    while home.is_reading:
        time.sleep(0.01)
    watch._event(looked)

    folder = make_run(project)

    assert id_of(folder) in watch._event(looked)["changed"]
    home.catalog.close()


def test_the_folders_that_the_first_page_waited_for_are_not_looked_at_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project")
    make_run(project)
    home = Home.of(project)
    home.ready()
    while home.is_reading:
        time.sleep(0.01)
    looks = list[str]()
    monkeypatch.setattr(home.catalog, "synchronize", lambda *_: looks.append("") or Synchronized())
    watch, looked = Watch(home), _Looked()

    watch._event(looked)
    assert looks == []

    make_run(project)
    watch._event(looked)
    assert looks == [""]
    home.catalog.close()


def test_a_look_that_had_to_wait_for_another_is_no_reason_to_look_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.of(make_project(tmp_path / "project"))
    watch, pauses = Watch(home), list[float]()
    monkeypatch.setattr(watch._wake, "wait", pauses.append)
    monkeypatch.setattr(Home, "ready", lambda _: time.sleep(0.5))

    with closing(QueueChanges()) as queue:
        watch._look(_Looked(), queue)

    assert pauses == [IDLE_S]
    home.catalog.close()


@pytest.mark.thorough
def test_a_server_ends_in_silence_while_a_page_is_open(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    with (
        serving(project.root) as server,
        closing(socket.create_connection(("127.0.0.1", server.port))) as page,
    ):
        head = f"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie: {server.cookie}\r\n\r\n"
        page.sendall(head.encode())
        assert b"200" in page.recv(100)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(PATIENCE_S)
    assert "Traceback" not in "".join(server.said)


def test_curves_that_have_not_changed_are_kept_by_a_browser_as_long_as_they_do_not(
    server: Server, runs: dict[str, str]
) -> None:
    asked = {"runs": runs["good"], "metric": "valid/acc"}
    whole = server.ask("GET", "/api/curves", **asked)
    known = {"If-None-Match": whole.headers["etag"]}

    again = server.ask("GET", "/api/curves", headers=known, **asked)

    assert (again.status, again.body) == (304, b"")
    kept = ("etag", "cache-control")
    assert [again.headers[name] for name in kept] == [whole.headers[name] for name in kept]
    assert "no-store" not in again.headers["cache-control"]


def test_a_request_that_outlasts_the_grace_is_cut_off_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.sleep(600)

    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=0)
    server = QuietServer(config)
    log = logging.getLogger("uvicorn.error")
    level = log.level
    try:
        with listen("127.0.0.1", 0) as listener:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            with closing(socket.create_connection(listener.getsockname())) as visitor:
                visitor.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert begun.wait(60)
                server.should_exit = True
                thread.join(60)
        assert not thread.is_alive()
    finally:
        log.setLevel(level)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_the_body_of_an_answer_does_not_wait_until_its_head_was_acknowledged() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
