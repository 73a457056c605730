"""Lists of runs."""

from __future__ import annotations

import csv
import io
import json
import math
import time
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import assay
from assay.core.errors import InputError
from assay.formats.event_log import Edit
from assay.formats.run_file import Best
from assay.query.catalog import Asked, open_catalog
from assay.query.columns import COLUMNS, DEFAULT_COLUMNS
from assay.query.table import differing_keys, list_runs, make_group_table, make_table
from assay.store.layout import Project
from run_folders import SECOND, edit, hold_lease, make_project, make_run


def cells(line: str) -> int:
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in line
        if not unicodedata.combining(c)
    )


def column(project: Project, name: str, **options: object) -> list[object]:
    table = list_runs(project, columns=[name], **options)  # type: ignore[arg-type]
    return [next(iter(row.values())) for row in table.cells]


def test_a_list_reads_well_at_eighty_columns(project: Project) -> None:
    best = Best(metric="valid/acc", mode="max", value=0.98765432, step=3)
    make_run(project, id="aaaaaaaa", tag="mnist-cnn", age_s=7300, ran_s=72, best=best)
    make_run(
        project,
        id="bbbbbbbb",
        tag="a-much-longer-tag-that-nobody-can-read",
        age_s=200_000,
        ran_s=7500,
    )
    make_run(project, id="cccccccc", tag="", status="failed", age_s=100, ran_s=4.2)

    assert list_runs(project).text(width=80) == [
        "status    tag                 id        best                 duration        age",
        "failed    -                   cccccccc  -                       4.2 s  1 min ago",
        "finished  mnist-cnn           aaaaaaaa  valid/acc 0.98765  1 min 12 s    2 h ago",
        "finished  a-much-lo…can-read  bbbbbbbb  -                   2 h 5 min    2 d ago",
    ]
    assert "a-much-longer-tag-that-nobody-can-read" in "\n".join(
        list_runs(project).text(width=None)
    )


def test_the_newest_comes_first_and_tests_only_on_request(project: Project) -> None:
    make_run(project, id="aaaaaaaa", age_s=20)
    make_run(project, id="bbbbbbbb", age_s=10)
    make_run(project, id="cccccccc", age_s=5, kind="test")

    assert column(project, "id") == ["bbbbbbbb", "aaaaaaaa"]
    assert column(project, "id", tests=True) == ["cccccccc", "bbbbbbbb", "aaaaaaaa"]
    assert column(project, "kind", tests=True, limit=1) == ["test"]


def test_a_list_is_sorted_by_any_column_with_what_has_nothing_last(project: Project) -> None:
    for name, value in (("a", 3.0), ("b", 1.0), ("c", None), ("d", math.nan), ("e", 2.0)):
        points = {} if value is None else {"loss": [value]}
        make_run(project, id=name * 8, tag=name, age_s=ord(name), points=points)

    def order(sort: str) -> str:
        return "".join(str(tag) for tag in column(project, "tag", sort=sort))

    assert order("loss") == "beadc"
    assert order("-loss") == "aebdc"
    assert order("loss.max") == "beadc"
    assert order("created") == "edcba"
    assert order("age") == "abcde"
    assert order("-tag") == "edcba"
    assert order("status") == "abcde"


def test_runs_are_sorted_by_their_best(project: Project) -> None:
    for name, value in (("a", 0.5), ("b", 0.9)):
        make_run(project, tag=name, best=Best(metric="acc", mode="max", value=value, step=1))
    make_run(project, tag="c")

    assert column(project, "tag", sort="-best") == ["b", "a", "c"]


def test_results_of_any_kind_can_be_a_column_and_be_sorted(project: Project) -> None:
    for tag, value in (("a", "text"), ("b", 3), ("c", [1]), ("d", {"x": 1})):
        make_run(project, tag=tag, values={"result": value})

    assert column(project, "result", sort="tag") == ["text", 3, [1], {"x": 1}]
    assert len(column(project, "tag", sort="result")) == 4
    assert list_runs(project, columns=["result"], sort="tag").text() == [
        "result",
        "text",
        "3",
        "[1]",
        '{"x":1}',
    ]


def test_every_column_has_something_to_say(project: Project) -> None:
    best = Best(metric="acc", mode="max", value=0.5, step=2)
    folder = make_run(
        project,
        id="aaaaaaaa",
        points={"acc": [0.25, 0.5]},
        best=best,
        parent="bbbbbbbb@3",
        attempt={"reason": "no\nmore", "to_step": 7, "config_hash": "c" * 64},
    )
    edit(folder, [Edit(what="label", key="paper", new=True), Edit(what="label", key="x", new=True)])
    edit(
        folder,
        [
            Edit(what="note", new="older"),
            Edit(what="note", new="newer\nline"),
            Edit(what="tag", new="other"),
        ],
    )
    names = [*COLUMNS, "acc", "acc.min", "acc.mean", "acc.count"]

    (row,) = list_runs(project, columns=names).cells
    shown = dict(
        zip(
            names,
            list_runs(project, columns=names).text(width=None)[1].split("  "),
            strict=False,
        )
    )

    assert row["labels"] == ["paper", "x"]
    assert (row["note"], row["tag"], row["reason"]) == ("newer\nline", "other", "no\nmore")
    assert (row["step"], row["attempts"], row["config"], row["parent"]) == (
        7,
        1,
        "c" * 16,
        "bbbbbbbb@3",
    )
    assert (row["acc"], row["acc.min"], row["acc.mean"], row["acc.count"]) == (0.5, 0.25, 0.375, 2)
    assert row["best"] == {"metric": "acc", "mode": "max", "value": 0.5, "step": 2}
    assert (row["folder"], row["project"]) == (str(folder), str(project.root))
    assert row["duration_s"] == 72
    assert row["created"].startswith("20")
    assert shown["status"] == "finished"
    text = list_runs(project, columns=names).text(width=None)[1]
    assert "paper, x" in text and "newer line" in text and "no more" in text


def test_a_column_that_nothing_has_names_its_neighbours(project: Project) -> None:
    make_run(project, points={"valid/acc": [1.0]}, values={"test/acc": 1})

    def text(name: str) -> str:
        with pytest.raises(InputError) as caught:
            list_runs(project, columns=[name])
        return str(caught.value)

    assert "did you mean `valid/acc`?" in text("valid/ac")
    assert "did you mean `duration`?" in text("durations")
    assert "there are .last, .min, .max" in text("valid/acc.median")
    assert "there are status, duration" in text("zzzzz")
    with pytest.raises(InputError, match="No run has anything called `zzzzz`"):
        list_runs(project, sort="-zzzzz")


def test_what_became_of_a_run_is_derived(project: Project) -> None:
    alive = make_run(project, tag="alive", ran_s=None, age_s=50)
    hold_lease(alive)
    dead = make_run(project, tag="dead", ran_s=None)
    hold_lease(dead, process_start="1")
    far = make_run(project, tag="far", ran_s=None, age_s=7200)
    hold_lease(far, place="x", beat_ns=time.time_ns() - 3600 * SECOND)
    damaged = make_run(project, tag="torn")
    (damaged / "run.json").write_text("{")

    by_tag = {row.tag: row for row in open_catalog(project).all_rows()}
    found = {tag: row.status for tag, row in by_tag.items()}

    assert (found["alive"], found["dead"], found["far"]) == ("running", "killed", "unknown")
    assert "damaged" in found.values()
    assert by_tag["alive"].duration_s == pytest.approx(50, abs=5)
    assert any("cannot be read" in str(reason) for reason in column(project, "reason"))
    assert None in column(project, "duration")


def test_the_step_of_a_run_that_wrote_no_end_is_that_of_its_last_point(project: Project) -> None:
    run = make_run(project, ran_s=None, points={"loss": [0.3, 0.2, 0.1], "valid/loss": [0.3]})
    hold_lease(run, process_start="1")

    (row,) = list_runs(project, columns=["status", "step"]).cells

    assert row == {"status": "killed", "step": 3}
    assert len(list_runs(project, where="step = 3")) == 1


def test_several_projects_are_one_list(project: Project, tmp_path: Path) -> None:
    other = make_project(tmp_path / "other")
    make_run(project, tag="a", age_s=20)
    make_run(other, tag="b", age_s=10)

    table = list_runs([project, other], columns=["tag", "project"])

    assert [row["tag"] for row in table.cells] == ["b", "a"]
    assert len(list_runs([])) == 0
    assert list_runs([]).to_json() == "[]"


def test_programs_get_json_with_words_for_what_json_lacks(project: Project) -> None:
    make_run(project, tag="ü", points={"loss": [math.inf]})

    (row,) = json.loads(list_runs(project, columns=["tag", "loss"]).to_json())

    assert row == {"tag": "ü", "loss": "inf"}
    assert len(list_runs(project).to_json().split("\n")) == 3


@pytest.mark.parametrize(
    "tag", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\tx", "\rx", "=1"]
)
def test_a_tag_is_no_formula_in_a_spreadsheet(project: Project, tag: str) -> None:
    make_run(project, tag=tag)

    _, row = csv.reader(io.StringIO(list_runs(project, columns=["tag"]).to_csv(), newline=""))

    assert row == ["'" + tag.replace("\r", "\\r")]


@pytest.mark.parametrize("tag", ["-1", "+3.5", "-1e-5", "-inf", "plain", "a=b"])
def test_a_number_in_a_spreadsheet_stays_a_number(project: Project, tag: str) -> None:
    make_run(project, tag=tag)

    _, row = csv.reader(io.StringIO(list_runs(project, columns=["tag"]).to_csv(), newline=""))

    assert row == [tag]


def test_csv_has_a_head_and_splits_the_best(project: Project) -> None:
    make_run(
        project,
        tag='a,"b"',
        best=Best(metric="acc", mode="max", value=0.25, step=1),
        values={"r": {"x": 1}},
    )
    edit(
        make_run(project, tag="c"),
        [Edit(what="label", key="x", new=True), Edit(what="label", key="y", new=True)],
    )

    table = list_runs(project, columns=["tag", "best", "labels", "r"], sort="tag")

    assert list(csv.reader(io.StringIO(table.to_csv()))) == [
        ["tag", "best_metric", "best", "labels", "r"],
        ['a,"b"', "acc", "0.25", "", '{"x":1}'],
        ["c", "", "", "x, y", ""],
    ]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(
    tag=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), width=st.integers(60, 120)
)
def test_no_tag_breaks_the_lines_or_their_width(
    tmp_path_factory: pytest.TempPathFactory, tag: str, width: int
) -> None:
    project = make_project(tmp_path_factory.mktemp("p"))
    make_run(project, tag=tag, points={"loss": [1.0]})

    lines = list_runs(project).text(width=width)

    assert len(lines) == 2
    assert all(line.isprintable() and cells(line) <= width for line in lines)


def test_the_default_columns_exist() -> None:
    assert set(DEFAULT_COLUMNS) <= set(COLUMNS)


TYPED = {
    "true": ("true", True, "true", "true", "flag = true"),
    "false": ("false", False, "false", "false", "flag = false"),
    "one": ("1", 1, "1", "1", "flag = 1"),
    "text-true": ('"true"', "true", '"true"', "true", "flag = 'true'"),
    "text-one": ('"1"', "1", '"1"', "1", "flag = '1'"),
    "text": ('"relu"', "relu", "relu", "relu", "flag = relu"),
    "half": ("0.5", 0.5, "0.5", "0.5", "flag = 0.5"),
    "long": (f"{2**70 + 1}", 2**70 + 1, f"{2**70 + 1}", f"{2**70 + 1}", f"flag = {2**70 + 1}"),
    "day": ("2026-11-20", "2026-11-20", "2026-11-20", "2026-11-20", "flag = 2026-11-20"),
    "list": ('[1, "a"]', [1, "a"], '[1,"a"]', '[1,"a"]', 'flag = [1, "a"]'),
    "empty": ("[]", [], "[]", "[]", "flag = []"),
}
"""By tag: a value as TOML, in JSON, as shown, in CSV, and the filter that finds it."""


def test_a_setting_keeps_its_type_in_every_face(project: Project) -> None:
    for tag, (toml, *_) in TYPED.items():
        make_run(project, tag=tag, config=f"flag = {toml}\n")
    make_run(project, tag="none", config='flag = "@none"\n')
    make_run(project, tag="without", config="other = 1\n")
    catalog = open_catalog(project)
    asked = Asked(columns=("tag", "flag"), limit=None)
    table = make_table(catalog, asked)

    as_json = {row["tag"]: row["flag"] for row in json.loads(table.to_json())}
    as_csv = {row["tag"]: row["flag"] for row in csv.DictReader(io.StringIO(table.to_csv()))}
    shown = dict(table.shown_rows())
    groups = make_group_table(catalog, replace(asked, columns=("flag",), group=("flag",)))

    for tag, (_, plain, text, cell, where) in TYPED.items():
        assert (type(as_json[tag]), as_json[tag]) == (type(plain), plain)
        assert (shown[tag], as_csv[tag]) == (text, cell)
        assert [run.tag for run in assay.runs(where, project=project)] == [tag], where
    assert (shown["none"], as_json["none"]) == ("none", None)
    assert (shown["without"], as_json["without"]) == ("-", None)
    assert sorted(len(group.ids) for group in groups.groups) == [1] * 11 + [2]
    assert differing_keys(catalog.select(asked)) == ["flag", "other"]
    where = f"flag > {2**69} or flag < 0.7 or flag >= 2026-01-01"
    assert {run.tag for run in assay.runs(where, project=project)} == {"half", "long", "day"}


def test_a_name_that_a_metric_takes_from_a_key_is_told(project: Project) -> None:
    make_run(project, config="b = true\n", points={"b": [1.0]})
    catalog = open_catalog(project)
    told = ["`b` is the metric; the key of the configs is `config.b`"]

    assert catalog.describe_shadows(Asked(where="b > 0")) == told
    assert catalog.describe_shadows(Asked(columns=("b",))) == told
    assert catalog.describe_shadows(Asked(where="config.b = true", columns=("config.b",))) == []
    with pytest.raises(InputError, match=r"config\.b"):
        catalog.select(Asked(where="b = true"))
