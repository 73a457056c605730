"""Runs that differ in the seed alone."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.formats.run_file import Best
from assay.query.catalog import Asked, open_catalog
from assay.query.groups import BY_CONFIG, Spread, compute_spread
from assay.query.table import GroupTable, differing_keys, make_group_table
from assay.store.layout import Project
from run_folders import make_run


def grouped(project: Project, *columns: str) -> GroupTable:
    asked = Asked(columns=columns, group=(BY_CONFIG,))
    return make_group_table(open_catalog(project), asked)


def cells(table: GroupTable) -> list[dict[str, Any]]:
    return [dict(zip(table.names, group.cells, strict=True)) for group in table.groups]


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

    table = grouped(project, "acc", "acc.count", "lr", "best")

    by_name = dict(zip((str(group.name) for group in table.groups), cells(table), strict=True))
    assert set(by_name) == {"lr=small", "large-0 lr=large", "alone lr=-"}
    small = by_name["lr=small"]
    assert (small["acc"].mean, small["acc"].count) == (pytest.approx(0.92), 3)
    assert small["acc"].std == pytest.approx(statistics.stdev([0.90, 0.92, 0.94]))
    assert small["lr"] == "small"
    assert by_name["alone lr=-"]["acc"] is None
    head, first, *_ = [line.split("  ") for line in table.text()]
    assert head[0] == "name" and first[0].startswith("alone")
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

    table = grouped(project, "best", "acc", "seed", "lr")

    none, small = cells(table)
    assert (small["best"].mean, small["best"].count) == (pytest.approx(0.85), 2)
    assert small["acc"].mean == pytest.approx(0.85) and small["lr"] == "small"
    assert table.text()[2].split()[1:6] == ["2", "of", "3", "0.850", "±"]
    assert (table.groups[0].finished, none["acc"].mean) == (0, 0.3)


def test_a_list_of_groups_begins_with_the_best_of_what_its_runs_watch(project: Project) -> None:
    same_but_seed(project, "small", [0.9, 0.8])

    assert grouped(project).names == ("acc.max",)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_mean_and_deviation_are_those_of_the_standard_library(values: list[float]) -> None:
    found = compute_spread(values)

    assert found.mean == pytest.approx(statistics.mean(values), abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert str(found)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(2, 12))
def test_equal_values_have_no_deviation_however_large_they_are(value: float, count: int) -> None:
    assert compute_spread([value] * count) == Spread(value, 0.0, count)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1e-5, 1e-5, 1e-5], "1e-05 ± 0"),
        ([0.5, 0.5], "0.5 ± 0"),
        ([-0.05, 0.0499], "0.000 ± 0.071"),
        ([0.4, 0.5394], "0.470 ± 0.099"),
        ([0.4, 0.5412], "0.47 ± 0.10"),
        ([1e200, 2e200], "1.5e+200 ± 7.1e+199"),
        ([1e300, -1e300], "0 ± 1.4e+300"),
    ],
)
def test_a_mean_has_the_digits_that_its_deviation_leaves(values: list[float], text: str) -> None:
    assert str(compute_spread(values)) == text


@pytest.mark.row("C79")
def test_the_keys_that_differ_are_named(project: Project) -> None:
    make_run(project, tag="a", config="lr = 0.1\nsame = 1\n[model]\nwidth = 1\n")
    make_run(project, tag="b", config="lr = 0.1\nsame = 1\nmore = 2\n[model]\nwidth = 2\n")

    assert differing_keys(open_catalog(project).select(Asked())) == ["model.width", "more"]
    assert differing_keys(open_catalog(project).select(Asked(where="tag = a"))) == []


def test_a_run_without_a_config_stays_alone_whatever_groups_may_differ_in(
    project: Project,
) -> None:
    for i in range(2):
        make_run(project, tag="only-fold", config=f"fold = {i}\n")
    for _ in range(2):
        make_run(project, tag="none")

    asked = Asked(group=(BY_CONFIG,), ignored=("fold",))
    groups = make_group_table(open_catalog(project), asked).groups

    assert sorted((group.tag, len(group.ids)) for group in groups) == [
        ("none", 1),
        ("none", 1),
        ("only-fold", 2),
    ]
