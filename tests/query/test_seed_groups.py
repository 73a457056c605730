"""Runs that differ in the seed alone."""

from __future__ import annotations

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.run_file import Best
from assay.query.differing_keys import differing_keys
from assay.query.found_runs import find_runs
from assay.query.seed_groups import grouped, spread
from assay.store.layout import Project
from run_folders import make_run


def same_but_seed(project: Project, config: str, values: list[float]) -> None:
    for seed, value in enumerate(values):
        make_run(
            project,
            tag=f"{config}-{seed}",
            age_s=100 - seed,
            points={"acc": [0.0, value]},
            config=f'seed = {seed}\nlr = "{config}"\n',
            attempt={"seedless_hash": config, "config_hash": f"{config}{seed}"},
            best=Best(metric="acc", mode="max", value=value, step=2),
        )


def test_repeats_are_one_line_with_mean_and_deviation(project: Project) -> None:
    same_but_seed(project, "small", [0.90, 0.92, 0.94])
    same_but_seed(project, "large", [0.5])
    make_run(project, tag="alone", age_s=5)

    table = grouped(find_runs(project), ["acc", "acc.count", "lr", "best"])

    by_tag = {group.tag: group for group in table.groups}
    assert set(by_tag) == {"small-2", "large-0", "alone"}
    small = by_tag["small-2"].cells
    assert (small["acc"].mean, small["acc"].count) == (pytest.approx(0.92), 3)
    assert small["acc"].std == pytest.approx(statistics.stdev([0.90, 0.92, 0.94]))
    assert small["lr"] == "small"
    assert by_tag["alone"].cells["acc"] is None
    head, first, *_ = [line.split("  ") for line in table.text()]
    assert head[0] == "tag" and first[0].startswith("alone")
    assert any("0.920 ± 0.020" in line for line in table.text())
    assert [len(row["runs"]) for row in json.loads(table.to_json())] == [1, 3, 1]


def test_a_repeat_that_failed_is_counted_and_not_averaged(project: Project) -> None:
    same_but_seed(project, "small", [0.9, 0.8])
    failed = {
        "config": 'seed = 2\nlr = "small"\n',
        "attempt": {"seedless_hash": "small", "config_hash": "small2", "status": "failed"},
        "status": "failed",
        "best": Best(metric="acc", mode="max", value=0.1, step=1),
    }
    make_run(project, tag="small-2", points={"acc": [0.1]}, age_s=50, **failed)
    failed["config"], failed["attempt"] = "lr = 9\n", {"seedless_hash": "b", "status": "failed"}
    make_run(project, tag="none", points={"acc": [0.3]}, age_s=40, **failed)

    table = grouped(find_runs(project), ["best", "acc", "seed", "lr"])

    none, small = table.groups
    assert (small.cells["best"].mean, small.cells["best"].count) == (pytest.approx(0.85), 2)
    assert small.cells["acc"].mean == pytest.approx(0.85) and small.cells["lr"] == "small"
    assert table.text()[2].split()[1:6] == ["2", "of", "3", "0.850", "±"]
    assert (none.finished, none.cells["acc"].mean) == (0, 0.3)


def test_a_list_of_groups_begins_with_what_is_best(project: Project) -> None:
    same_but_seed(project, "small", [0.9, 0.8])

    assert grouped(find_runs(project)).names == ("best",)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_mean_and_deviation_are_those_of_the_standard_library(values: list[float]) -> None:
    found = spread(values)

    assert found.mean == pytest.approx(statistics.mean(values), abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert str(found)


@pytest.mark.row("C79")
def test_the_keys_that_differ_are_named(project: Project) -> None:
    make_run(project, tag="a", config="lr = 0.1\nsame = 1\n[model]\nwidth = 1\n")
    make_run(project, tag="b", config="lr = 0.1\nsame = 1\nmore = 2\n[model]\nwidth = 2\n")

    assert sorted(differing_keys(find_runs(project))) == ["model.width", "more"]
    assert differing_keys(find_runs(project, where="tag = a")) == []
