"""One answer to each question about runs, whichever face is asked."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import assay
from assay.cli.main import main
from assay.formats.event_log import Edit
from assay.formats.run_file import Best
from assay.query.catalog import open_catalog
from assay.query.find import find_run
from assay.report.figure import make_request
from assay.report.figure_data import read_panels
from assay.store.layout import Project
from assay.web.access import Keys, Rules
from assay.web.app import make_api
from assay.web.pages import Files
from run_folders import edit, hold_lease, make_project, make_run

NUMBERS = st.sampled_from([0.1, 0.25, 3.0, -1e-9, math.inf, -math.inf, math.nan])
RUNS = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([0.1, 0.2, "auto", None]),
        "status": st.sampled_from(["finished", "finished", "failed", "stopped", "killed"]),
        "acc": st.lists(NUMBERS, max_size=2),
        "best": st.none() | st.sampled_from([0.5, 0.75]),
        "score": st.sampled_from([None, 2, 2.5, "good", True, [1, 2]]),
        "kind": st.sampled_from(["train", "train", "train", "test"]),
        "labels": st.lists(st.sampled_from(["x", "paper", "archived"]), max_size=2),
        "note": st.sampled_from([None, "older", "two words"]),
        "tag": st.sampled_from(["", "small", "größer"]),
        "reason": st.sampled_from(["", "out of memory"]),
    }
)
FACTS = (
    *("status", "tag", "id", "best", "kind", "step", "attempts", "labels", "note", "reason"),
    *("parent", "sweep", "point", "config", "project", "folder", "duration"),
)
COLUMNS = (*FACTS, "acc", "acc.max", "acc.count", "score", "lr", "seed", "desc")
ALWAYS = {"acc": [1.0], "best": 0.5, "score": 1, "lr": 0.1, "status": "finished"}
"""A run that has something under every name, so that each may be asked for."""

ANY_STORE = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def fill(root: Path, runs: Sequence[Mapping[str, Any]]) -> Project:
    project = make_project(root)
    for i, given_run in enumerate([ALWAYS, *runs]):
        run = {"kind": "train", "labels": [], "note": None, "tag": "", "reason": "", **given_run}
        lr, best, status = run["lr"], run["best"], run["status"]
        config = f"seed = {i}\n" if lr is None else f"seed = {i}\nlr = {json.dumps(lr)}\n"
        folder = make_run(
            project,
            tag=run["tag"],
            age_s=1_000 - i,
            kind=run["kind"],
            points={"acc": run["acc"]} if run["acc"] else {},
            config=config,
            status="running" if status == "killed" else status,
            ran_s=None if status == "killed" else 10 + i,
            best=None if best is None else Best(metric="acc", mode="max", value=best, step=1),
            values={} if run["score"] is None else {"score": run["score"]},
            attempt={
                "seedless_hash": f"lr {lr}",
                "config_hash": f"{i:02}" * 32,
                "reason": run["reason"],
                "to_step": len(run["acc"]),
            },
        )
        if status == "killed":
            hold_lease(folder, process_start="1")
        (folder / "README.md").write_text("# title\n\nwhat it is for\n", "utf-8")
        edits = [Edit(what="label", key=label, new=True) for label in run["labels"]]
        edits += [] if run["note"] is None else [Edit(what="note", new=run["note"])]
        edit(folder, edits)
    return project


@contextlib.contextmanager
def page(project: Project) -> Iterator[TestClient]:
    api = make_api(project, Keys(b"secret", ""), Rules("assay"), Files("", is_built=False))
    with TestClient(api) as client:
        yield client


def print_json(project: Project, *arguments: str) -> Any:
    """Return what a command prints as JSON, in the folder of the project."""
    out = io.StringIO()
    with contextlib.chdir(project.root), contextlib.redirect_stdout(out):
        assert main([*arguments, "--json"]) == 0
    return json.loads(out.getvalue())


def as_cell(name: str, value: Any) -> Any:
    """Return what the page has in a cell for a value of `ls --json`."""
    match name, value:
        case "best", dict():
            return value["value"]
        case "labels", list():
            return ", ".join(value) or None
        case "score", bool() | list():
            return spell(value)
        case _:
            return value


def is_close(left: Any, right: Any) -> bool:
    return math.isclose(left, right, abs_tol=60) if left and right else left == right


@given(runs=st.lists(RUNS, min_size=1, max_size=6), sort=st.sampled_from(COLUMNS), up=st.booleans())
@ANY_STORE
def test_a_list_has_one_answer_in_every_cell_on_the_command_line_the_page_and_in_python(
    tmp_path_factory: pytest.TempPathFactory, runs: list[dict[str, Any]], sort: str, up: bool
) -> None:
    project = fill(tmp_path_factory.mktemp("store") / "project", runs)
    order = sort if up else f"-{sort}"
    columns = ("id", *(name for name in COLUMNS if name != "id"))

    printed = print_json(project, "ls", "--sort", order, "--columns", ",".join(columns), "--tests")
    table = assay.runs(sort=order, columns=columns, tests=True, project=project)
    with page(project) as client:
        asked = {"sort": order, "column": list(columns), "tests": True, "limit": 100}
        rows = client.get("/api/runs", params=asked).json()["rows"]
        ids = client.get("/api/runs/ids", params=asked).json()
        values = client.get("/api/values", params=asked).json()["columns"]

    assert json.loads(table.to_json()) == printed or sort == "duration"
    assert [row["id"] for row in printed] == [row["id"] for row in rows] == ids
    assert [run.id for run in table] == ids
    for i, (line, row) in enumerate(zip(printed, rows, strict=True)):
        for name, cell in zip(columns, row["cells"], strict=True):
            if name == "duration":
                assert is_close(line["duration_s"], cell)
                continue
            assert as_cell(name, line[name]) == cell, name
            assert values[name][i] in (cell, None), name
        view = find_run(line["id"], project)
        assert (view.status, view.tag, view.kind) == (line["status"], line["tag"], line["kind"])
        assert sorted(view.labels) == line["labels"] == row["labels"]
        assert row["status"] == line["status"]
        assert row["step"] == line["step"] == view.last_step
        best = line["best"] and line["best"]["value"]
        assert best == (view.best.value if view.best is not None else None)


@given(runs=st.lists(RUNS, min_size=1, max_size=6), sort=st.sampled_from(["acc", "best", "lr"]))
@ANY_STORE
def test_runs_of_one_config_have_one_mean_wherever_it_is_asked_for(
    tmp_path_factory: pytest.TempPathFactory, runs: list[dict[str, Any]], sort: str
) -> None:
    project = fill(tmp_path_factory.mktemp("store") / "project", runs)
    names = ("acc", "acc.max", "best", "lr", "score", "status", "step")

    printed = print_json(project, "ls", "--group", "--sort", sort, "--columns", ",".join(names))
    with page(project) as client:
        asked = {"sort": sort, "column": list(names), "group": "config"}
        groups = client.get("/api/runs", params=asked).json()["groups"]
        cells = [
            client.post("/api/follow", json={"value": "acc", "runs": group["ids"]}).json()
            for group in groups
        ]

    catalog = open_catalog(project)
    assert [each["runs"] for each in printed] == [each["ids"][::-1] for each in groups]
    for line, group, cell in zip(printed, groups, cells, strict=True):
        for name, shown in zip(names, group["cells"], strict=True):
            assert spell(line[name]) == spell(shown), name
        repeats = [find_run(run_id, project) for run_id in line["runs"]]
        finished = [run for run in repeats if run.status == "finished"]
        assert line["finished"] == len(finished)
        assert spell_cell(cell) == spell(line["acc"])
        others = {run.id: run.status for run in repeats if finished and run not in finished}
        assert cell["leftOut"] == others or cell["state"] == "gone"
        if line["acc"] is not None and isinstance(line["acc"]["mean"], float):  # nan is no bar
            asked = make_request("bars", line["runs"], metrics="acc")
            (panel,) = read_panels(catalog, asked)
            (drawn,) = panel.items
            assert sorted(drawn.runs) == sorted(cell["runs"])
            own = {name: drawn.values[name] for name in ("mean", "std")}
            assert own | {"count": drawn.values["n"]} == line["acc"]


def spell(cell: Any) -> Any:
    """Return a cell of a group with the words of JSON, not those of JavaScript.

    The page shows a truth value and a list as the text that people read.
    """
    if isinstance(cell, bool | list):
        return json.dumps(cell, separators=(",", ":"))
    if not isinstance(cell, dict):
        return cell
    words = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
    return {key: words.get(str(value), value) for key, value in cell.items()}


def spell_cell(cell: Mapping[str, Any]) -> Any:
    """Return a cell of a result table as one of a group."""
    if cell["state"] == "gone":
        return None
    return spell({"mean": cell["value"], "std": cell["std"], "count": cell["count"]})


@given(
    runs=st.lists(RUNS, min_size=1, max_size=6),
    where=st.sampled_from(
        [
            "acc > 0.2",
            "not acc",
            "status = finished and lr",
            "label = archived",
            "kind = test",
            "best >= 0.5 or score",
            "reason ~ memory",
            'tag != "small"',
            "acc.count = 2 and step > 1",
            "note",
        ]
    ),
)
@ANY_STORE
def test_an_expression_finds_the_same_runs_on_every_face(
    tmp_path_factory: pytest.TempPathFactory, runs: list[dict[str, Any]], where: str
) -> None:
    project = fill(tmp_path_factory.mktemp("store") / "project", runs)

    printed = print_json(project, "ls", where, "--columns", "id")
    found = [run.id for run in assay.runs(where, project=project)]
    grouped = print_json(project, "ls", where, "--group", "--columns", "acc")
    with page(project) as client:
        ids = client.get("/api/runs/ids", params={"where": where}).json()
        one = client.post("/api/follow", json={"value": "id", "where": where}).json()

    assert [line["id"] for line in printed] == found == ids
    assert sorted(run_id for group in grouped for run_id in group["runs"]) == sorted(ids)
    assert sorted([*one["runs"], *one["leftOut"]]) == sorted(ids)
