"""Comparison of runs: differences, equalities, the step where curves part, and significance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.formats import run_file
from assay.formats.event_log import Edit
from assay.formats.json_codec import to_plain
from assay.formats.verdict import Verdict
from assay.query.catalog import Catalog
from assay.query.compare import CurveDivergence, compare, first_parting
from assay.query.diff import diff
from assay.query.run import RunView
from assay.query.significance import welch
from assay.record.edits import append
from assay.store.layout import Project
from run_folders import make_project, make_run


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


def compared(project: Project, *folders: Path):
    catalog = Catalog(project)
    catalog.synchronize()
    return compare([RunView(folder) for folder in folders], catalog)


def test_what_differs_is_listed_and_what_is_equal_is_counted(project: Project) -> None:
    one = make_run(project, config="seed = 0\n[model]\nwidth = 32\n", points={"loss": [1.0, 0.5]})
    two = make_run(project, config="seed = 1\n[model]\nwidth = 32\n", points={"loss": [1.0, 0.25]})

    found = compared(project, one, two)

    assert [(row.key, row.values) for row in found.config] == [("seed", ("0", "1"))]
    assert found.equal_config == 1
    assert "differ in seed" in found.sentence
    assert "first different step 2 (loss)" in found.sentence


def test_a_value_from_outside_that_no_config_holds_is_compared_here_and_by_diff(
    project: Project,
) -> None:
    folders = [make_run(project, config="seed = 0\n", points={"loss": [1.0]}) for _ in range(2)]
    for folder, value in zip(folders, ("4", None), strict=True):
        run = run_file.read(folder)
        launch = {"outside": {"env:X": value, "argv": ["a"]}}
        run_file.write(folder, replace(run, attempts=(replace(run.newest, launch=launch),)))

    found = compared(project, *folders)

    assert [(row.key, row.values) for row in found.config] == [("env:X", ("4", "null"))]
    (change,) = diff(*map(RunView, folders)).config
    assert (change.key, change.left, change.right) == ("env:X", "4", "null")


def test_a_verdict_about_two_of_the_runs_is_there_once_the_newest_first(project: Project) -> None:
    one, two, three = (make_run(project, points={"loss": [1.0]}) for _ in range(3))
    ids = [RunView(folder).id for folder in (one, two, three)]
    for at, pair in enumerate([(0, 1), (1, 0), (0, 2)]):
        runs = (ids[pair[0]], ids[pair[1]])
        verdict = Verdict(
            question="diverge",
            runs=runs,
            equal=True,
            first_step=1,
            last_step=9,
            compared=4,
            at_ns=at,
        )
        for number in pair:
            folder = RunView((one, two, three)[number]).folder
            append(folder, Edit(what="verdict", key="diverge", new=to_plain(verdict)))

    found = compared(project, one, two).verdicts

    assert [verdict.at_ns for verdict in found] == [1, 0]


def test_curves_part_at_the_first_step_that_has_other_bits(project: Project) -> None:
    one = make_run(project, points={"loss": [1.0, 0.5, 0.25], "acc": [0.1, 0.2, 0.3]})
    two = make_run(project, points={"loss": [1.0, 0.5, 0.2500000000000001], "acc": [0.1, 0.2, 0.3]})
    short = make_run(project, points={"loss": [1.0, 0.5]})

    assert first_parting(RunView(one), RunView(two)) == CurveDivergence(3, "loss")
    assert first_parting(RunView(one), RunView(short)) is None


def test_nan_is_equal_to_nan_and_time_is_no_difference(project: Project) -> None:
    nan = float("nan")
    one = make_run(project, points={"loss": [nan, 1.0], "time/step": [0.1, 0.2]})
    two = make_run(project, points={"loss": [nan, 1.0], "time/step": [0.3, 0.4]})

    assert first_parting(RunView(one), RunView(two)) is None


def test_repeats_with_other_seeds_are_what_a_difference_is_tested_over(project: Project) -> None:
    groups = {"a": (0.80, 0.81, 0.82), "b": (0.90, 0.91, 0.92)}
    folders = {
        name: [
            make_run(
                project, tag=name, points={"acc": [value]}, attempt={"seedless_hash": name * 16}
            )
            for value in values
        ]
        for name, values in groups.items()
    }

    found = compared(project, folders["a"][0], folders["b"][0])

    assert found.repeats == (3, 3)
    test = found.metrics[0].tests[1]
    assert test is not None and test.p < 0.001
    assert test.difference == pytest.approx(0.1)


def test_the_groups_that_a_p_value_is_of_stand_beside_it(project: Project) -> None:
    groups = {"a": (0.80, 0.81, 0.82), "b": (0.90, 0.91, 0.92, float("nan"))}
    folders = [
        make_run(project, tag=name, points={"acc": [value]}, attempt={"seedless_hash": name * 16})
        for name, values in groups.items()
        for value in values
    ]

    (row,) = compared(project, folders[0], folders[3]).metrics

    found = [(each.mean, each.std, each.count) for each in row.groups if each]
    assert found == [pytest.approx((0.81, 0.01, 3)), pytest.approx((0.91, 0.01, 3))]  # without nan
    alone = compared(project, make_run(project, points={"acc": [0.5]}), make_run(project))
    assert all(not any(row.groups) and not any(row.tests) for row in alone.metrics)


def test_a_damaged_config_leaves_the_rest_of_the_comparison(project: Project) -> None:
    one = make_run(project, config="seed = 0\n", points={"loss": [1.0]})
    two = make_run(project, config="seed = [[[", points={"loss": [0.5]})

    found = compared(project, one, two)

    assert [row.name for row in found.metrics] == ["loss"]


def test_welch_tells_nothing_of_a_single_run_and_everything_of_equal_bits() -> None:
    assert welch([1.0], [1.0, 2.0]) is None
    same = welch([1.0, 1.0], [2.0, 2.0])
    assert same is not None and same.p == 0.0
    equal = welch([1.0, 1.0], [1.0, 1.0])
    assert equal is not None and equal.p == 1.0
