"""`assay table`: cells of text or of run values, their history, and the table for a paper."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from assay.store.layout import Project
from assay.store.tables import read_history, table_file
from cli.conftest import Assay
from run_folders import id_of, make_run, write_metrics

SEEDLESS = {"seedless_hash": "same"}


def run_with(project: Project, value: float, *, tag: str = "small", **fields) -> str:
    folder = make_run(project, tag=tag, points={"valid/acc": [value / 2, value]}, **fields)
    return id_of(folder)


def test_a_cell_shows_the_value_of_the_run_that_it_leads_to(project: Project, assay: Assay) -> None:
    run = run_with(project, 0.9)

    said = assay(
        "table",
        "set",
        "digits",
        "small CNN",
        "accuracy",
        "valid/acc.max",
        "--run",
        run,
        "--best",
        "max",
    )

    assert said.code == 0, said.err
    assert [line.split() for line in said.lines[:2]] == [
        ["name", "accuracy"],
        ["small", "CNN", "0.9"],
    ]
    assert said.lines[2:] == ["", "Each number is of one run (n = 1)."]
    assert assay("table", "show").lines == ["digits  digits  (1 row, 2 columns)"]


def test_a_cell_over_several_runs_is_mean_and_deviation(project: Project, assay: Assay) -> None:
    for value in (0.8, 0.9, 1.0):
        run_with(project, value)

    said = assay(
        "table", "set", "digits", "small", "accuracy", "valid/acc.max", "--where", "tag = small"
    )

    assert said.code == 0, said.err
    assert "0.90 ± 0.10" in said.out


def test_a_row_or_column_that_is_called_as_the_key_of_another_is_one_of_its_own(
    project: Project, assay: Assay
) -> None:
    for tag, values in {"base": [0.1, 0.2], "r1": [0.9, 0.8], "r2": [0.7, 0.6]}.items():
        points = {"valid/acc": [values[0]], "valid-acc": [values[1]], "name": [5.0]}
        make_run(project, tag=tag, points=points)

    said = assay(
        "table", "fill", "t", "tag = base", "tag = r1", "tag = r2",
        "-m", "valid/acc", "-m", "valid-acc", "-m", "name",
    )  # fmt: skip

    assert [line.split() for line in said.lines[:4]] == [
        ["name", "valid/acc", "valid-acc", "name"],
        ["base", "0.1", "0.2", "5"],
        ["r1", "0.9", "0.8", "5"],
        ["r2", "0.7", "0.6", "5"],
    ]
    said = assay("table", "set", "t", "r3", "valid-acc-2", "0.5")  # keys that are no names
    assert said.lines[3].split() == ["r2", "0.7", "0.5", "5"]


def test_a_cell_whose_source_changed_says_what_it_was(project: Project, assay: Assay) -> None:
    run_with(project, 0.5)
    assay("table", "set", "digits", "small", "accuracy", "valid/acc.max", "--where", "tag = small")
    run_with(project, 0.7)

    said = assay("table", "show", "digits")

    assert "(was 0.5)" in said.out
    assert "1 stale" in assay("table", "show").out
    assert "1 cell changed" in assay("table", "show", "digits", "--as", "csv").err


def test_a_cell_whose_run_is_gone_says_so_and_the_rest_is_there(
    project: Project, assay: Assay
) -> None:
    run = run_with(project, 0.5)
    assay("table", "set", "digits", "small", "accuracy", "valid/acc", "--run", run)
    assay("table", "set", "digits", "small", "source", "our own")
    assay("rm", run)

    said = assay("table", "show", "digits")

    assert "gone (was 0.5)" in said.out
    assert "our own" in said.out


def test_a_run_or_a_query_that_leads_nowhere_is_told_before_the_table_is_made(
    project: Project, assay: Assay
) -> None:
    run = run_with(project, 0.5)

    for arguments in (
        ["--run", run, "--where", "tag = small"],
        ["--run", "nobody"],
        ["--where", "tga = small"],
    ):
        said = assay("table", "set", "digits", "small", "accuracy", "valid/acc", *arguments)
        assert said.code == 2
        assert "Traceback" not in said.err
    said = assay("table", "set", "digits", "small", "accuracy", "valid/nope", "--run", run)
    assert said.code == 2
    assert assay("table", "show").out.startswith("There is no table yet.")


def test_the_history_of_a_table_says_who_changed_what_from_what(
    project: Project, assay: Assay
) -> None:
    assay("table", "set", "digits", "small", "source", "first")
    assay("table", "set", "digits", "small", "source", "second")

    said = assay("table", "show", "digits", "--history")

    assert said.lines[0].split()[-2:] == ["->", "digits"] or "created" in said.lines[0]
    assert said.lines[-1].endswith("first -> second")
    edits = list(read_history(project, "digits"))
    assert edits[-1].old == "first" and edits[-1].new == "second" and edits[-1].who


def test_a_table_is_written_for_a_paper_with_the_best_in_bold(
    project: Project, assay: Assay, tmp_path: Path
) -> None:
    low, high = run_with(project, 0.5, tag="low_100%"), run_with(project, 0.75, tag="high")
    for row, run in (("low_100%", low), ("high", high)):
        assay("table", "set", "digits", row, "acc", "valid/acc.max", "--run", run, "--best", "max")

    latex = assay("table", "show", "digits", "--as", "latex").out
    assert r"\toprule" in latex and r"\textbf{0.75}" in latex and r"low\_100\%" in latex
    markdown = assay("table", "show", "digits", "--as", "markdown").out
    assert r"| low\_100% | 0.5 |" in markdown and "| high | **0.75** |" in markdown
    file = tmp_path / "out.json"
    assert assay("table", "show", "digits", "-o", str(file)).code == 0
    assert json.loads(file.read_text(encoding="utf-8"))[1] == {"name": "high", "acc": 0.75}


def test_a_table_is_written_whole_into_a_folder_that_need_not_be_there(
    project: Project, assay: Assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assay("table", "set", "digits", "a", "acc", "valid/acc.max", "--run", run_with(project, 0.5))
    file = tmp_path / "paper" / "acc.TEX"
    assert assay("table", "show", "digits", "-o", str(file)).code == 0
    before = file.read_bytes()
    assay("table", "set", "digits", "a", "acc", "0.75")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        full = assay("table", "show", "digits", "-o", str(file))

    assert full.code == 1 and "The table cannot be written: the disk is full." in full.err
    assert [each.name for each in file.parent.iterdir()] == ["acc.TEX"]
    assert file.read_bytes() == before
    other = assay("table", "show", "digits", "--as", "csv", "-o", str(file.parent))
    assert other.code == 2 and "something else is in its place" in other.err
    assert "fix: name another place" in other.err
    kind = assay("table", "show", "digits", "-o", "acc.docx")
    assert kind.code == 2 and "acc.docx is no kind of table." in kind.err


@pytest.fixture
def groups(project: Project, assay: Assay) -> None:
    """A table of three groups: the best, one that is near it, one that is far from it."""
    for name, values in {
        "best": (0.90, 0.92, 0.94),
        "near": (0.89, 0.91, 0.93),
        "far_1": (0.50, 0.51, 0.52),
    }.items():
        for value in values:
            run_with(project, value, tag=name)
        where = ("--where", f"tag = {name}", "--best", "max")
        assay("table", "set", "digits", name, "acc", "valid/acc.max", *where)


@pytest.mark.usefixtures("groups")
def test_marks_n_and_p_of_a_table_are_explained_below_it(assay: Assay) -> None:
    said = assay("table", "show", "digits")

    head, best, near, far, blank, *legend = said.lines
    assert best.endswith("0.920 ± 0.020*") and near.endswith("0.910 ± 0.020_†")
    assert far.endswith("0.510 ± 0.010") and not blank and head.split() == ["name", "acc"]
    assert " ".join(legend) == (
        "± is the sample standard deviation of n = 3 runs in each cell."
        " *: best of its column (acc: the largest). _: the one after it."
        " Welch's two-sided t-test against the best of the column, † where p > 0.05;"
        " acc: near p = 0.57 †, far_1 p < 0.001."
    )


@pytest.mark.usefixtures("groups")
def test_the_table_of_a_paper_has_n_and_p_below_it(assay: Assay) -> None:
    markdown = assay("table", "show", "digits", "--as", "markdown").out
    latex = assay("table", "show", "digits", "--as", "latex").out

    assert "| near | *0.910 ± 0.020* † |" in markdown
    assert "n = 3 runs in each cell." in markdown and "Bold: best of its column" in markdown
    assert r"near p = 0.57 †, far\_1 p \< 0.001." in markdown
    _, below = latex.split(r"\end{tabular}")
    assert r"$\pm$ is the sample standard deviation of n = 3 runs in each cell." in below
    assert r"near p = 0.57 $^{\dagger}$, far\_1 p $<$ 0.001." in below
    assert below.count(r"\footnotesize") == 3 and "%" not in below


@pytest.mark.usefixtures("groups")
def test_a_number_says_of_how_many_runs_it_is_where_others_are_of_more(
    project: Project, assay: Assay
) -> None:
    run = run_with(project, 0.4, tag="single")

    said = assay("table", "set", "digits", "single", "acc", "valid/acc.max", "--run", run)

    assert "0.920 ± 0.020 (n 3)*" in said.out and "0.4 (n 1)" in said.out
    assert "± is the sample standard deviation of the n runs of a cell." in said.out
    assert "single p" not in said.out  # one run is no sample


def test_a_whole_number_of_a_run_keeps_its_digits(project: Project, assay: Assay) -> None:
    run = id_of(make_run(project, values={"params": 2**62 + 1}))

    said = assay("table", "set", "digits", "small", "params", "params", "--run", run)

    assert str(2**62 + 1) in said.out


def test_a_table_that_is_damaged_is_named_and_stops_nothing(project: Project, assay: Assay) -> None:
    assay("table", "set", "good", "a", "b", "c")
    table_file(project, "bad").write_text("[[[", encoding="utf-8")

    said = assay("table", "show")

    assert said.code == 0
    assert "bad  cannot be read" in said.out and "good" in said.out
    assert "no TOML" in assay("table", "show", "bad").err
    assert "good" in assay("table", "show", "goot").err


def test_a_name_that_leaves_the_folder_is_refused(project: Project, assay: Assay) -> None:
    for name in ("../x", "a/b", ".hidden", "x" * 65):
        said = assay("table", "set", name, "a", "b", "c")
        assert said.code == 2
        assert "cannot be the name" in said.err


def test_a_table_of_a_run_that_trains_is_not_called_stale(project: Project, assay: Assay) -> None:
    folder = make_run(project, tag="small", ran_s=None, points={"valid/acc": [0.5]})
    run = id_of(folder)
    from run_folders import hold_lease

    hold_lease(folder)
    assay("table", "set", "digits", "small", "accuracy", "valid/acc", "--run", run)
    shutil.rmtree(folder / "metrics")
    write_metrics(folder, {"valid/acc": [0.5, 0.75]})

    said = assay("table", "show", "digits")

    assert "0.75" in said.out and "was" not in said.out
