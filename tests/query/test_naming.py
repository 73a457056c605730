"""Names of runs and groups that are shown together."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import date, datetime, time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.query.catalog import Asked, open_catalog
from assay.query.find import label_groups, select_group
from assay.query.groups import BY_CONFIG
from assay.query.naming import ShownName, fit_names, name_together
from assay.query.table import make_group_table
from assay.report.figure_data import FigureRequest, read_panels
from assay.report.run_report import report_runs
from assay.store.cells import identify
from assay.store.layout import Project
from run_folders import make_project, make_run


def named(configs: list[dict[str, Any]], tags: list[str], **more: Any) -> list[str]:
    ids = [f"id{i}" for i in range(len(configs))]
    return list(map(str, name_together(configs, [], tags, ids, **more)))


@pytest.mark.parametrize(
    ("configs", "tags", "names"),
    [
        ([{"o.lr": 0.1, "m.w": 1}, {"o.lr": 0.2, "m.w": 1}], ["s", "s"], ["lr=0.1", "lr=0.2"]),
        ([{"o.lr": 0.1}, {"o.lr": 0.2}], ["a", "b"], ["a lr=0.1", "b lr=0.2"]),
        ([{"a.lr": 1, "b.lr": 1}, {"a.lr": 2, "b.lr": 3}], ["", ""], ["a.lr=1 b.lr=1", "a.lr=2 b.lr=3"]),
        ([{"x": 1}, {"x": 1}], ["s", "s"], ["s id0", "s id1"]),
        ([{"x": 1}, {}], ["s", "s"], ["x=1", "x=-"]),
        ([{"x": True}, {"x": "true"}], ["", ""], ["x=true", 'x="true"']),
        ([{"x": 0.1000001}, {"x": 0.1000002}], ["", ""], ["x=0.1000001", "x=0.1000002"]),
        ([{"x": 1}], ["only"], ["only"]),
        ([{f"k{i}": i + j for i in range(9)} for j in (0, 1)], ["", ""], ["k0=0 (+8 keys)", "k0=1 (+8 keys)"]),
    ],
)  # fmt: skip
def test_a_name_has_the_keys_that_differ_and_a_tag_that_tells_something(
    configs: list[dict[str, Any]], tags: list[str], names: list[str]
) -> None:
    assert named(configs, tags) == names


ODD = [
    *(0.1, 0.3, 0.1 + 0.2, 1e-300, math.nan, math.inf, 2**64, 2**64 + 1, None, [], [1], [1.0, 2]),
    *(date(2026, 1, 2), datetime(2026, 1, 2), time(3, 4), "", " ", "a", "a\nb", "a b", "-", "none"),
    *("true", "1", "nan", "2026-01-02", "[1]", '"a"', "03:04:00", "é" * 300, "é" * 299 + "x"),
]
values = (
    st.booleans() | st.integers(0, 3) | st.floats() | st.text(max_size=4) | st.sampled_from(ODD)
)
configs = st.dictionaries(st.sampled_from(["a.lr", "b.lr", "m.width", "act"]), values, max_size=4)


@given(st.lists(st.tuples(configs, st.sampled_from(["", "s", "t"])), min_size=1, max_size=6))
def test_names_are_unique_and_contain_what_differs(
    runs: list[tuple[dict[str, Any], str]],
) -> None:
    names = name_together(
        [config for config, _ in runs],
        [],
        [tag for _, tag in runs],
        [f"#{i}" for i in range(len(runs))],
    )

    for width in (200, 20, 1):
        fitted = fit_names(names, width)
        assert len(set(fitted)) == len(fitted)
        assert all(fitted)
    for key in {key for config, _ in runs for key in config}:
        cells = [(key in config, identify(config.get(key))) for config, _ in runs]
        if len(set(cells)) > 1:
            found = [dict(name.settings) for name in names]
            (short,) = [each for each in found[0] if f".{key}".endswith(f".{each}")]
            pairs = {(cell, each[short]) for cell, each in zip(cells, found, strict=True)}
            assert len(pairs) == len(set(cells)) == len({text for _, text in pairs})


def test_where_space_is_short_the_tag_goes_first_then_the_keys_then_what_values_share() -> None:
    names = [ShownName("sweep", (("lr", lr), ("data", f"/long/folder/of/{lr}.csv"))) for lr in "12"]

    assert fit_names(names, 60)[0] == "sweep lr=1 data=/long/folder/of/1.csv"
    assert fit_names(names, 32)[0] == "lr=1 data=/long/folder/of/1.csv"
    assert fit_names(names, 25)[0] == "1 /long/folder/of/1.csv"
    assert fit_names(names, 10)[0] == "1 ...1.csv"


runs = st.lists(
    st.fixed_dictionaries(
        {
            "lr": st.sampled_from(["0.1", "0.2", "0.20000000000000004"]),
            "width": st.sampled_from(["1", "true", '"1"', "[1]", "2026-01-02", '"a\\nb"']),
        }
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda config: (float(config["lr"]), config["width"]),
)


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(runs, st.booleans())
def test_every_face_names_a_group_alike(
    tmp_path_factory: Any, found: list[Any], tagged: bool
) -> None:
    project: Project = make_project(tmp_path_factory.mktemp("faces"))
    for i, config in enumerate(found):
        for seed in range(2):
            text = f"seed = {seed}\nlr = {config['lr']}\nwidth = {config['width']}\n"
            tag = f"t{i}" if tagged else "sweep"
            attempt = {"seedless_hash": f"h{i}"}
            make_run(project, tag=tag, config=text, attempt=attempt, points={"acc": [0.5]})
    catalog = open_catalog(project)
    asked = Asked(group=(BY_CONFIG,), columns=("acc",), limit=None)

    names = [group.name for group in catalog.page(asked).groups]
    page = sorted(map(str, names))
    table = make_group_table(catalog, asked)
    figure = read_panels(catalog, FigureRequest(kind="curves", runs=("acc > 0",), metrics=("acc",)))
    wheres = [f"group = h{i}" for i in range(len(found))]
    labels = label_groups(wheres, [select_group(catalog, where) for where in wheres])

    assert len(set(page)) == len(found)
    assert sorted(row["name"] for row in json.loads(table.to_json())) == page
    assert [row[0] for row in csv.reader(io.StringIO(table.to_csv()))][1:] == [
        row["name"] for row in json.loads(table.to_json())
    ]
    shown = sorted(row[0] for row in table.shown_rows()[1:])
    assert shown == page
    for width in (80, 40):
        narrow = [line[: line.index("  ")] for line in table.text(width=width)[1:]]
        assert len(set(narrow)) == len(found) and all(" ± " not in line for line in narrow)
        means = [line for line in table.text(width=width)[1:] if line.endswith("0.5 ± 0")]
        assert len(means) == len(found)
    result = next(
        each for each in report_runs("acc > 0", project).sections if each.title == "Result"
    )
    cells = {tuple(row[:-1]) for row in result.blocks[0].rows}
    assert len(cells) == len(found)
    assert sorted(item.group for item in figure[0].items) == page
    assert sorted(labels) == sorted(fit_names(names, 32))
