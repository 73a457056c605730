"""Answers of the routes to what nobody should ask: in words, and no error of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from assay.query.curves import CurveView, draw_curves
from assay.record.writer import MetricsWriter
from assay.store.series import read_series
from assay.web import live
from assay.web.access import Keys, Rules
from assay.web.app import make_api
from assay.web.curve_bytes import pack_curves
from assay.web.pages import Files
from expression_corpus import texts_of
from run_folders import id_of, make_project, make_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, str]]:
    """A client of the routes without server and guard, and the run of their project."""
    project = make_project(tmp_path_factory.mktemp("answers") / "project")
    folder = make_run(project, tag="good", points={"acc": [0.5, 0.9]}, config="lr = 0.1\n")
    (folder / "log.txt").write_text("hello\n", encoding="utf-8")
    api = make_api(project, Keys(b"secret", ""), Rules("assay"), Files("", is_built=False))
    with TestClient(api, raise_server_exceptions=False) as client:
        yield client, id_of(folder)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, text: client.get("/api/runs", params={"where": text}),
        lambda client, text: client.get("/api/runs/ids", params={"grep": text}),
        lambda client, text: client.get("/api/runs", params={"sort": text, "column": text[:500]}),
        lambda client, text: client.get("/api/runs", params={"group": text}),
        lambda client, text: client.get(
            "/api/values", params={"where": text, "column": text[:500]}
        ),
        lambda client, text: client.get(
            "/api/importance", params={"where": text, "metric": text[:500]}
        ),
        lambda client, text: client.post("/api/follow", json={"value": "lr", "where": text}),
        lambda client, text: client.post("/api/follow", json={"value": text, "where": "lr"}),
    ],
)
def test_no_kind_of_text_that_is_asked_for_is_an_error_of_the_server(
    place: tuple[TestClient, str], ask: Callable[[TestClient, str], Any]
) -> None:
    # No longer address is sent by this client, and none with half a character.
    for kind, text in texts_of(5_000, ends=("x",)).items():
        answer = ask(place[0], text.replace("\ud83d", "?"))
        assert answer.status_code < 500, (kind, answer.text[:500])
        assert answer.status_code == 200 or answer.json()["what"], kind


@pytest.mark.parametrize("where", ["lr = 99999999999999999999", " and ".join(["lr = 0.1"] * 200)])
def test_large_numbers_and_long_conjunctions_are_answered(
    place: tuple[TestClient, str], where: str
) -> None:
    client, run = place
    answer = client.get("/api/runs/ids", params={"where": where})

    assert answer.status_code == 200
    assert answer.json() == ([] if "9999" in where else [run])


def test_more_sort_keys_than_can_be_joined_are_refused_in_words(
    place: tuple[TestClient, str],
) -> None:
    answer = place[0].get("/api/runs", params={"sort": ["lr"] * 100})

    assert answer.status_code == 422
    assert "at most 20" in answer.json()["what"]


def test_a_table_of_very_many_runs_is_made(place: tuple[TestClient, str]) -> None:
    client, run = place
    ids = [f"nothere{i}" for i in range(999)] + [run]

    answer = client.post("/api/tables", json={"name": "many", "columns": ["lr"], "runs": ids})

    assert answer.status_code == 200
    assert [row["cells"][0]["text"] for row in answer.json()["rows"]] == ["good"]


def test_a_page_more_than_are_served_at_once_is_told_to_come_later(
    place: tuple[TestClient, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 0)

    answer = place[0].get("/api/live")

    assert answer.status_code == 503
    assert answer.json()["what"] == "At most 0 pages are open at once."


@pytest.mark.parametrize("start", [2**40, 2**53 - 1, 2**53])
def test_behind_the_end_of_a_text_there_is_nothing(
    place: tuple[TestClient, str], start: int
) -> None:
    client, run = place

    answer = client.get(f"/api/runs/{run}/text", params={"name": "log", "start": start})

    assert (answer.status_code, answer.text) == (200, "")


def test_a_cell_spells_the_numbers_that_json_lacks_as_every_other_face_does(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path / "project")
    for tag, value in {"a": 1.0, "b": float("nan"), "c": float("inf")}.items():
        make_run(project, tag=tag, config=f"lr = {value!r}\n", values={"score": value})
    api = make_api(project, Keys(b"secret", ""), Rules("assay"), Files("", is_built=False))
    with TestClient(api) as client:
        asked = {"sort": "lr", "column": ["lr", "score"]}
        rows = client.get("/api/runs", params=asked).json()["rows"]
        values = client.get("/api/values", params=asked).json()["columns"]["lr"]
        groups = client.get("/api/runs", params={**asked, "group": "lr"}).json()["groups"]

    assert [row["cells"] for row in rows] == [[1.0, 1.0], ["inf", "inf"], ["nan", "nan"]]
    assert values == [1.0, None, None]  # a scatter plot has no place for others
    assert [group["key"] for group in groups] == [[1.0], ["inf"], ["nan"]]
    # The page reads means as numbers of JavaScript.
    assert [group["cells"][1]["mean"] for group in groups] == [1.0, "Infinity", "NaN"]


def test_the_bytes_of_curves_hold_the_x_of_metrics_that_are_logged_together_once(
    tmp_path: Path,
) -> None:
    writer = MetricsWriter(tmp_path / "metrics", 1)
    for step in range(200):
        writer.log({"loss": float(step % 7), "lr": 0.5}, step)
    writer.close()
    read = read_series(tmp_path / "metrics")
    view = CurveView(points=10, means=True)
    curves = draw_curves(["r"], lambda _: read, ["loss", "lr"], view, widths={})

    data = pack_curves(curves, {"missing": []})

    end = 4 + int.from_bytes(data[:4], "little")
    head, numbers = json.loads(data[4:end]), np.frombuffer(data[end:])
    columns = [numbers[at : at + len(curves[0])] for at in range(0, len(numbers), len(curves[0]))]
    assert [each["sameX"] for each in head["curves"]] == [None, 0]
    loss, rate = curves
    sent = [loss.xs, loss.values, loss.lows, loss.highs, loss.means]
    sent += [rate.values, rate.lows, rate.highs, rate.means]
    np.testing.assert_array_equal(columns, sent)
