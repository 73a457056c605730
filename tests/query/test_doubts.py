"""What is to be known of a mean stands wherever the mean does: situations by faces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from assay.formats import run_file
from assay.formats.run_file import Attempt
from assay.query.catalog import Asked, open_catalog
from assay.query.compare import compare
from assay.query.find import select_group
from assay.query.groups import BY_CONFIG
from assay.query.observations import read_observations
from assay.query.run import RunView
from assay.query.table import GroupTable, make_group_table
from assay.report.document import Prose
from assay.report.figure import make_request
from assay.report.figure_data import read_panels
from assay.report.run_report import report_runs
from assay.store.layout import Project
from run_folders import make_project, make_run
from web.serving import Server, serving

METRIC = "valid/acc"
HISTORY = "a resume changed lr: 0.1, then 0.01 from step 8"

Situation = tuple[Sequence[tuple[int | None, str, float]], str, str]
SITUATIONS: dict[str, Situation] = {
    "fine": ([(0, "finished", 0.5), (1, "finished", 0.6)], "", ""),
    "failed": (
        [(0, "failed", 0.5), (1, "failed", 0.6)],
        "none of its 2 runs has finished: 2 failed",
        "none of its 2 runs has finished: 2 failed",
    ),
    "running": (
        [(0, "running", 0.5), (1, "running", 0.6)],
        "none of its 2 runs has finished: 2 killed",
        "none of its 2 runs has finished: 2 killed",
    ),
    "partly": (
        [(0, "finished", 0.5), (1, "finished", 0.6), (2, "failed", 0.1), (3, "stopped", 0.2)],
        "2 runs do not count: 1 failed, 1 stopped",
        "2 runs do not count: 1 failed, 1 stopped",
    ),
    "twice": (
        [(1, "finished", 0.5), (1, "finished", 0.6), (2, "finished", 0.7)],
        "seed 1 counts twice",
        "runs of one seed are one observation: seed 1",
    ),
    "alone": (
        [(0, "failed", 0.5)],
        "its run has not finished: 1 failed",
        "its run has not finished: 1 failed",
    ),
    "seedless": ([(None, "finished", 0.5), (None, "finished", 0.6)], "", ""),
    "changed": ([(0, "finished", 0.5), (1, "finished", 0.6)], HISTORY, HISTORY),
}
"""Seed, status and value of each run by tag; what is said of their mean where each run counts, and
where runs of one seed are one observation."""


def change_rate(project: Project, tag: str) -> None:
    """Let the runs of a tag have been resumed at step 8 with another rate."""
    for view in (RunView(row.path) for row in open_catalog(project).all_rows() if row.tag == tag):
        run = run_file.read(view.path)
        before = view.path / "config" / "before-attempt-2"
        before.mkdir(parents=True)
        (before / "config.toml").write_text(view.config_text)
        text = view.config_text.replace("lr = 0.1", "lr = 0.01")
        (view.path / "config.toml").write_text(text)
        second = Attempt(
            number=2, started_ns=1, status="finished", from_step=8, seedless_hash="other"
        )
        run_file.write(view.path, replace(run, attempts=(*run.attempts, second)))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("doubts"))
    for at, (tag, (runs, _, _)) in enumerate(SITUATIONS.items()):
        for seed, status, value in runs:
            make_run(
                made,
                tag=tag,
                age_s=1000 - at,
                points={METRIC: [value]},
                config=f"lr = 0.1\nsize = {at}\n" + ("" if seed is None else f"seed = {seed}\n"),
                ran_s=None if status == "running" else 9,
                status=status,
                attempt={"seedless_hash": tag, "status": status, "from_step": 0},
            )
    change_rate(made, "changed")
    return made


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Server]:
    with serving(project.root) as server:
        yield server


def table(project: Project, tag: str) -> GroupTable:
    asked = Asked(where=f"tag = {tag}", group=(BY_CONFIG,), columns=(METRIC,))
    return make_group_table(open_catalog(project), asked)


def list_groups(project: Project, tag: str) -> list[str]:
    return [each.removeprefix(f"{tag}: ") for each in table(project, tag).find_doubts()]


def list_as_json(project: Project, tag: str) -> list[str]:
    return list(json.loads(table(project, tag).to_json())[0].get("warnings", []))


def draw(project: Project, tag: str) -> list[str]:
    request = make_request("bars", [f"tag = {tag}"], metrics=[METRIC])
    (panel,) = read_panels(open_catalog(project), request)
    return [each.partition(": ")[2] for each in panel.warnings]


def report(project: Project, tag: str) -> list[str]:
    document = report_runs(f"tag = {tag}", project)
    result = next(each for each in document.sections if each.title == "Result")
    texts = [block.text for block in result.blocks if isinstance(block, Prose)]
    return [text.removeprefix(f"{tag}: ") for text in texts if text.startswith(f"{tag}: ")]


def compare_groups(project: Project, tag: str) -> list[str]:
    catalog = open_catalog(project)
    selection = select_group(catalog, f"tag = {tag}")
    return list(read_observations(selection, catalog.known_column(METRIC)).warnings)


def compare_runs(project: Project, tag: str) -> list[str]:
    first, *_ = (row for row in open_catalog(project).all_rows() if row.tag == tag)
    fine, *_ = (row for row in open_catalog(project).all_rows() if row.tag == "fine")
    views = [RunView(first.path), RunView(fine.path)]
    found = compare(views, open_catalog(project)).warnings
    return [each.partition(": ")[2] for each in found if each.startswith(first.id)]


EACH_COUNTS: dict[str, Callable[[Project, str], list[str]]] = {
    "groups": list_groups,
    "JSON": list_as_json,
    "figure": draw,
    "report": report,
}
ONE_OBSERVATION: dict[str, Callable[[Project, str], list[str]]] = {
    "assay compare": compare_groups,
    "comparison of runs": compare_runs,
}


@pytest.mark.parametrize("tag", SITUATIONS)
def test_each_face_says_what_is_to_be_known_of_a_mean(project: Project, tag: str) -> None:
    _, each_counts, one_observation = SITUATIONS[tag]

    for name, face in EACH_COUNTS.items():
        assert face(project, tag) == [each_counts] * bool(each_counts), name
    for name, face in ONE_OBSERVATION.items():
        assert face(project, tag) == [one_observation] * bool(one_observation), name


@pytest.mark.parametrize("tag", SITUATIONS)
def test_the_page_is_sent_what_is_to_be_known_of_a_mean(
    project: Project, server: Server, tag: str
) -> None:
    _, each_counts, one_observation = SITUATIONS[tag]
    (group,) = server.get(f"/api/runs?where={quote(f'tag = {tag}')}&group=config")["groups"]
    fine, *_ = server.get(f"/api/runs?where={quote('tag = fine')}")["rows"]

    compared = server.get(f"/api/compare?runs={group['ids'][-1]},{fine['id']}")["warnings"]

    assert group["warnings"] == [each_counts] * bool(each_counts)
    own = [each for each in compared if each.startswith(group["ids"][-1])]
    assert [each.partition(": ")[2] for each in own] == [one_observation] * bool(one_observation)


def test_a_deviation_of_zero_is_told_with_the_metric(tmp_path: Path) -> None:
    made = make_project(tmp_path)
    for seed in range(2):
        config = f"seed = {seed}\n"
        points = {METRIC: [0.5], "epoch": [1.0]}
        make_run(made, tag="a", points=points, config=config, attempt={"seedless_hash": "a"})
    asked = Asked(group=(BY_CONFIG,), columns=(METRIC, "epoch"))

    assert make_group_table(open_catalog(made), asked).find_doubts() == [
        f"a: all 2 values of {METRIC} are the same, so the deviation is 0"
    ]
