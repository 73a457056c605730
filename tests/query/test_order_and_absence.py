"""One order and one logic of values on every face: numbers, then nan, then texts, then nothing."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.query.catalog import Asked, Catalog, open_catalog
from assay.query.result_tables import cell_behind, follow_links
from assay.query.shown import describe_shown
from assay.query.table import (
    GroupTable,
    differing_keys,
    list_runs,
    make_group_table,
    make_table,
    runs,
)
from assay.report.figure import make_request
from assay.report.figure_data import read_panels
from assay.store.layout import Project
from assay.store.tables import Link, ResultTable, TableColumn, TableRow
from run_folders import make_project, make_run

VALUES: dict[str, Any] = {
    "ten": 10,
    "nan": math.nan,
    "hundred": 100.0,
    "none": None,
    "tiny": 1e-5,
    "inf": math.inf,
    "least": -math.inf,
    "nine": 9,
}
UP = ["least", "tiny", "nine", "ten", "hundred", "inf", "nan", "none"]
DOWN = ["inf", "hundred", "ten", "nine", "tiny", "least", "nan", "none"]
KINDS = {"config": "clip", "metric": "acc", "result": "score"}
Face = Callable[[Project, str], list[str]]


def toml(value: Any) -> str:
    return '"@none"' if value is None else repr(value)


def add_runs(project: Project, values: dict[str, Any]) -> None:
    for i, (tag, value) in enumerate(values.items()):
        make_run(
            project,
            tag=tag,
            age_s=1_000 - i,
            points={} if value is None else {"acc": [value]},
            config=f"clip = {toml(value)}\n",
            values={} if value is None else {"score": value},
            attempt={"seedless_hash": tag, "config_hash": tag},
        )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("order"))
    add_runs(made, VALUES)
    return made


def page(project: Project, **asked: Any) -> Any:
    catalog = Catalog(project)
    catalog.synchronize()
    try:
        return catalog.page(Asked(**asked))
    finally:
        catalog.close()


def grouped(project: Project, columns: Sequence[str] = (), **asked: Any) -> GroupTable:
    question = Asked(columns=columns, group=("config",), **asked)
    return make_group_table(open_catalog(project), question)


def csv_tags(text: str) -> list[str]:
    return [row["tag"] for row in csv.DictReader(io.StringIO(text))]


SORTED: dict[str, Face] = {
    "list": lambda project, sort: [row.tag for row in list_runs(project, sort=sort).rows],
    "runs": lambda project, sort: [run.tag for run in runs(sort=sort, project=project)],
    "json": lambda project, sort: [
        row["tag"] for row in json.loads(list_runs(project, sort=sort, columns=["tag"]).to_json())
    ],
    "csv": lambda project, sort: csv_tags(list_runs(project, sort=sort, columns=["tag"]).to_csv()),
    "groups": lambda project, sort: [group.tag for group in grouped(project, sort=(sort,)).groups],
    "groups as csv": lambda project, sort: csv_tags(grouped(project, sort=(sort,)).to_csv()),
    "page": lambda project, sort: [row.run.tag for row in page(project, sort=(sort,)).rows],
    "groups of the page": lambda project, sort: [
        group.tag for group in page(project, sort=(sort,), group=("config",)).groups
    ],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("face", SORTED)
def test_every_face_sorts_numbers_then_nan_then_nothing(
    project: Project, face: str, kind: str
) -> None:
    assert SORTED[face](project, KINDS[kind]) == UP
    assert SORTED[face](project, f"-{KINDS[kind]}") == DOWN


SELECTED: dict[str, Face] = {
    "list": lambda project, where: [row.tag for row in list_runs(project, where=where).rows],
    "runs": lambda project, where: [run.tag for run in runs(where, project=project)],
    "groups": lambda project, where: [group.tag for group in grouped(project, where=where).groups],
    "page": lambda project, where: [row.run.tag for row in page(project, where=where).rows],
}


@pytest.mark.parametrize("face", SELECTED)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("x = none", {"none"}),
        ("not x", {"none"}),
        ("x != none", set(VALUES) - {"none"}),
        ("x", set(VALUES) - {"none"}),
        ("x = nan", {"nan"}),
        ("x != nan", set(VALUES) - {"nan", "none"}),
        ("not x = nan", set(VALUES) - {"nan"}),
        ("x > 0.5", {"nine", "ten", "hundred", "inf"}),
        ("x <= 9", {"least", "tiny", "nine"}),
        ("not x > 0.5", {"least", "tiny", "nan", "none"}),
        ("x = inf", {"inf"}),
        ("x < inf", {"least", "tiny", "nine", "ten", "hundred"}),
        ("x > -inf", {"tiny", "nine", "ten", "hundred", "inf"}),
        ("x >= nan or x < nan", set()),
        ("x in (nan, -inf, 10)", {"nan", "least", "ten"}),
        ("x not in (nan, 10)", set(VALUES) - {"nan", "ten", "none"}),
        ("x != 10", set(VALUES) - {"ten", "none"}),
    ],
)
def test_every_face_finds_the_same_runs(
    project: Project, face: str, where: str, expected: set[str]
) -> None:
    for name in KINDS.values():
        assert set(SELECTED[face](project, where.replace("x", name))) == expected, name


@pytest.mark.parametrize("kind", KINDS)
def test_every_face_shows_nan_as_nan_and_nothing_as_nothing(project: Project, kind: str) -> None:
    name = KINDS[kind]
    shown = list_runs(project, sort=name, columns=["tag", name])
    as_json = {row["tag"]: row[name] for row in json.loads(shown.to_json())}
    as_csv = {row["tag"]: row[name] for row in csv.DictReader(io.StringIO(shown.to_csv()))}
    cells = {row.run.tag: row.cells[0] for row in page(project, columns=(name,)).rows}
    text = dict(line.split() for line in shown.text())

    assert (as_json["nan"], as_json["inf"], as_json["none"]) == ("nan", "inf", None)
    assert (as_csv["nan"], as_csv["inf"], as_csv["none"]) == ("nan", "inf", "")
    nothing = "none" if kind == "config" else "-"  # a setting of none is a value
    assert (text["nan"], text["inf"], text["none"]) == ("nan", "inf", nothing)
    assert math.isnan(cells["nan"])
    assert (cells["inf"], cells["none"]) == (math.inf, None)
    arrays = shown.to_numpy(name)[name]
    assert arrays.dtype.kind == "f"
    assert len(shown.group_by(name)) == len(VALUES)


@pytest.mark.parametrize("kind", ["config", "result"])
def test_texts_come_behind_nan_and_before_nothing(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = make_project(tmp_path_factory.mktemp("texts"))
    for tag, value in {"b": "auto", "d": 2, "c": math.nan, "a": "zero", "e": 10}.items():
        written = json.dumps(value) if isinstance(value, str) else value
        make_run(project, tag=tag, config=f"clip = {written}\n", values={"score": value})
    make_run(project, tag="f")

    for face in SORTED:
        if not face.startswith("groups"):
            assert SORTED[face](project, KINDS[kind]) == ["d", "e", "c", "b", "a", "f"], face
            assert SORTED[face](project, f"-{KINDS[kind]}") == ["e", "d", "c", "a", "b", "f"], face


def test_a_group_with_one_nan_is_nan_on_every_face_and_comes_behind_the_numbers(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    project = make_project(tmp_path_factory.mktemp("groups"))
    for config, values in {"a": [1.0, 3.0], "b": [1.0, math.nan], "c": [5.0, math.inf]}.items():
        for seed, value in enumerate(values):
            make_run(
                project,
                tag=config,
                points={"acc": [value]},
                config=f"seed = {seed}\n",
                attempt={"seedless_hash": config},
            )

    groups = grouped(project, ["acc"], sort=("acc",))
    of_page = page(project, sort=("acc",), columns=("acc",), group=("config",)).groups

    assert [group.tag for group in groups.groups] == ["a", "c", "b"]
    assert [group.tag for group in of_page] == ["a", "c", "b"]
    for means in (
        [group.cells[0].mean for group in groups.groups],
        [group.cells[0].mean for group in of_page],
    ):
        assert means[:2] == [2.0, math.inf]
        assert math.isnan(means[2])
    assert [line.split()[-1] for line in groups.text()[1:]] == ["1.4", "inf", "nan"]
    assert json.loads(groups.to_json())[2]["acc"] == {"mean": "nan", "std": "nan", "count": 2}


def test_the_runs_of_a_group_that_did_not_finish_count_nowhere(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    project = make_project(tmp_path_factory.mktemp("failed"))
    for value, status in ((0.9, "finished"), (0.7, "finished"), (0.1, "failed")):
        make_run(
            project,
            points={"acc": [value]},
            config="lr = 1\n",
            status=status,
            attempt={"seedless_hash": "one"},
        )

    (group,) = grouped(project, ["acc"]).groups
    (of_page,) = page(project, columns=("acc",), group=("config",)).groups

    assert group.cells[0] == of_page.cells[0]
    assert group.cells[0].mean == pytest.approx(0.8)


def test_none_in_a_list_of_values_is_refused_with_what_to_write(project: Project) -> None:
    with pytest.raises(Exception, match="`none` is compared with = and != alone") as caught:
        list_runs(project, where="clip in (none, 10)")

    assert "x = none or x in (1, 2)" in str(caught.value)


@pytest.mark.parametrize("name", KINDS.values())
def test_a_cell_of_a_result_table_says_nan_inf_and_nothing(project: Project, name: str) -> None:
    catalog = Catalog(project)
    catalog.synchronize()
    try:
        shown = {
            tag: cell_behind(Link(value=name, where=f'tag = "{tag}"'), catalog).text
            for tag in VALUES
        }
        several = cell_behind(Link(value=name, where='tag in ("nan", "ten")'), catalog)
    finally:
        catalog.close()

    assert [shown[tag] for tag in ("nan", "inf", "none", "ten")] == ["nan", "inf", "-", "10"]
    assert several.text == "nan"
    assert len(several.runs) == 2


def test_a_cell_of_a_result_table_counts_the_runs_that_finished_and_names_the_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    project = make_project(tmp_path_factory.mktemp("left-out"))
    for run_id, value, status in (
        ("aaaaaaa2", 0.95, "finished"),
        ("aaaaaaa3", 0.92, "finished"),
        ("aaaaaaa4", 0.82, "failed"),
    ):
        make_run(project, id=run_id, points={"acc": [value]}, status=status)
    catalog = open_catalog(project)
    table = ResultTable(
        name="digits",
        columns=(TableColumn(key="acc", title="accuracy"),),
        rows=(TableRow(key="r1", cells={"acc": Link(value="acc", where="acc")}),),
    )

    followed = follow_links(table, catalog)

    cell = followed.rows[0].cells[0]
    assert (cell.text, len(cell.samples)) == ("0.935 ± 0.021", 2)
    assert cell.left_out == {"aaaaaaa4": "failed"}
    assert "Left out beside repeats that finished: aaaaaaa4 (failed)." in followed.legend("*", "")


def test_a_mean_of_runs_of_which_none_finished_says_so_in_a_table_and_a_figure(
    project: Project,
) -> None:
    for run_id, value, status in (("aaaaaaa2", 0.6, "failed"), ("aaaaaaa3", 0.9, "stopped")):
        make_run(
            project,
            tag="ended",
            id=run_id,
            points={"acc": [value]},
            status=status,
            attempt={"seedless_hash": "one"},
        )
    table = ResultTable(
        name="digits",
        columns=(TableColumn(key="acc", title="accuracy"),),
        rows=(TableRow(key="r1", cells={"acc": Link(value="acc", where="tag = ended")}),),
    )

    followed = follow_links(table, open_catalog(project))
    request = make_request("curves", ["aaaaaaa2", "aaaaaaa3"], metrics="acc")
    (panel,) = read_panels(open_catalog(project), request)

    assert followed.rows[0].cells[0].left_out == {}
    (told,) = [line for line in followed.legend("*", "") if line.startswith("Counted, as no")]
    assert "aaaaaaa2 (failed)" in told and "aaaaaaa3 (stopped)" in told
    assert [item.label for item in panel.items] == ["ended (n = 2, none finished)"]


TYPED = {
    "date": "2026-01-02",
    "midnight": "2026-01-02T00:00:00",
    "morning": "2026-01-02T08:30:00",
    "abroad": "2026-01-02T09:00:00+09:00",
    "clock": "03:04:00",
    "ints": "[1, 2]",
    "floats": "[1.0, 2.0]",
    "flags": "[true, 2]",
    "empty": '""',
    "text": '"2026-01-02"',
    "lines": '"a\\nb"',
    "absent": "",
}
"""Values as TOML, by tag."""
DAY = {"date", "midnight", "morning", "abroad"}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("typed"))
    for tag, value in TYPED.items():
        make_run(made, tag=tag, config=f"x = {value}\n" if value else "y = 1\n", age_s=60)
    return made


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("x = 2026-01-02", DAY),
        ("x in (2026-01-02, '2026-01-02')", DAY | {"text"}),
        ("x >= 2026-01-02 and x <= 2026-01-02", DAY),
        ("x > 2026-01-01 and x < 2026-01-03", DAY),
        ("x > 2026-01-02", set()),
        ("x = 2026-01-02T00:00:00", {"midnight"}),
        ("x = 2026-01-02T00:00:00Z", {"abroad"}),
        ("x = 2026-01-02T01:00:00.0+01:00", {"abroad"}),
        ("x = '2026-01-02'", {"text"}),
        ("x = [1, 2]", {"ints", "floats"}),
        ("x in ([1.0, 2], 5)", {"ints", "floats"}),
        ("x = [true, 2]", {"flags"}),
        ("x = ''", {"empty"}),
        ("x = none", {"absent"}),
        ("not x", {"absent"}),
        ("created = 2020-01-01", set()),
        ("created <= 2020-01-01 or created > 9999-12-30", set()),
    ],
)
def test_dates_times_and_lists_are_found_by_what_they_say(
    typed: Project, where: str, expected: set[str]
) -> None:
    assert {run.tag for run in runs(where, project=typed)} == expected


def test_a_day_without_a_time_is_the_whole_day_that_runs_began_in(typed: Project) -> None:
    (first, *_) = runs(project=typed)
    day = first.created.date().isoformat()

    for where in (f"created = {day}", f"created in ({day}, 2020-01-01)", f"created <= {day}"):
        assert len(runs(where, project=typed)) == len(TYPED), where
    for where in (f"created > {day}", f"created < {day}", f"created != {day}"):
        assert len(runs(where, project=typed)) == 0, where


def test_runs_that_may_differ_in_a_key_are_grouped_whatever_types_the_other_keys_have(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path)
    for i, value in enumerate([*TYPED.values(), "[1, 2]", "2026-01-02"]):
        key = f"x = {value}\n" if value else ""
        make_run(project, tag="t", config=f"fold = {i}\n{key}", attempt={"seedless_hash": str(i)})

    sizes = sorted(len(group.ids) for group in grouped(project, ignored=("fold",)).groups)

    assert sizes == [1] * 9 + [2, 3]  # a date twice; of two lists the numbers are equal


def test_keys_that_a_metric_or_a_fact_hides_are_listed_where_they_differ(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    for i in range(2):
        config = f"loss = {i}\nstatus = {i}\nf = {0.1 + 0.2 if i else 0.3}\nlr = {i}\n"
        make_run(project, tag="t", config=config, points={"loss": [9.0]})
    catalog = open_catalog(project)

    keys = differing_keys(catalog.select(Asked()), without=("l*r",))
    table = make_table(catalog, Asked(columns=keys))

    shown = describe_shown(catalog, catalog.ids(Asked()))
    assert keys == ["f", "config.loss", "config.status"] and sorted(shown.keys) == [
        "config.loss",
        "config.status",
        "f",
        "lr",
    ]
    assert sorted(table.shown_rows()) == [("0.3", "0", "0"), ("0.30000000000000004", "1", "1")]
