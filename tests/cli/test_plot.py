"""`assay plot`: curves of one run and of several in a file."""

from __future__ import annotations

import numpy as np
import pytest

from assay.query.find import find_run, select_runs
from assay.report.figure import COLORS, DASHES, lines
from assay.store.layout import Project
from run_folders import make_run

from .conftest import Assay


@pytest.fixture
def runs(project: Project) -> list[str]:
    """Two repeats that differ in their seed, and one run with another config."""
    alike = {"seedless_hash": "a"}
    one = {"train/loss": [4.0, 2.0, 1.0], "valid/acc": [0.1, 0.2]}
    make_run(project, tag="small", id="aaaaaaaa", points=one, attempt=alike)
    make_run(
        project,
        tag="small",
        id="bbbbbbbb",
        points={"train/loss": [2.0, 2.0, 3.0, 9.0]},
        attempt=alike,
    )
    make_run(
        project,
        tag="big",
        id="cccccccc",
        points={"train/loss": [1.0, 0.5]},
        attempt={"seedless_hash": "b"},
    )
    return ["aaaaaaaa", "bbbbbbbb", "cccccccc"]


@pytest.mark.thorough
@pytest.mark.row("C73")
def test_curves_are_written_into_a_file_repeats_as_their_mean_with_a_band(
    assay: Assay, project: Project, runs: list[str]
) -> None:
    done = assay("plot", *runs, "-m", "loss", "-o", "fig.pdf", "--title", "losses")

    assert done.code == 0, done.err
    assert done.lines == [
        "small (mean of 2)  train/loss  3 points",
        "big  train/loss  2 points",
        "written: fig.pdf",
    ]
    assert (project.root / "fig.pdf").read_bytes().startswith(b"%PDF")
    again = (project.root / "fig.pdf").read_bytes()
    assert assay("plot", *runs, "-m", "loss", "-o", "fig.pdf", "--title", "losses").code == 0
    assert (project.root / "fig.pdf").read_bytes() == again

    mean, alone = lines([find_run(run) for run in [*runs, runs[0]]], ["train/loss"])
    assert mean.xs.tolist() == [1, 2, 3]  # where both have a point
    assert mean.ys.tolist() == [3, 2, 2]
    assert mean.band is not None and np.allclose(mean.band, [np.sqrt(2), 0, np.sqrt(2)])
    assert (mean.runs, alone.runs, alone.band) == (("aaaaaaaa", "bbbbbbbb"), ("cccccccc",), None)


@pytest.mark.thorough
def test_one_run_may_show_several_curves_and_other_kinds_of_files(
    assay: Assay, project: Project, runs: list[str]
) -> None:
    for name, head in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        done = assay("plot", runs[0], "-m", "train/loss", "-m", "acc", "-o", name, "--log")
        assert done.lines[:2] == ["small  train/loss  3 points", "small  valid/acc  2 points"]
        assert (project.root / name).read_bytes().startswith(head)


def test_what_cannot_be_drawn_is_told(assay: Assay, project: Project, runs: list[str]) -> None:
    for arguments, said in (
        ((runs[0], "-m", "los", "-o", "a.pdf"), "has no metric `los`"),
        ((runs[0], "-m", "los", "-o", "a.pdf"), "did you mean `loss`?"),
        (
            (runs[0], "-m", "loss", "-o", "a.xyz"),
            "a.xyz is no kind of figure.\n  fix: name it a.pdf, .png or .svg",
        ),
        (
            (runs[0], "-m", "loss", "-o", "nowhere/a.pdf"),
            "The figure cannot be written: No such file or directory.",
        ),
        ((runs[0], "-o", "a.pdf"), "needs the option -m or --metric"),
    ):
        done = assay("plot", *arguments)
        assert done.code == 2 and said in done.err


@pytest.mark.row("C73")
def test_lines_are_labelled_by_the_keys_that_differ_and_each_metric_has_a_panel_of_its_own(
    assay: Assay, project: Project
) -> None:
    for i in range(9):
        config = f'seed = {i}\ntag = "t{i}"\nsame = 1\n[optimizer]\nlr = {i}.5\n'
        points = {"train/loss": [2.0, 1.0], "valid/acc": [0.1, 0.2]}
        make_run(
            project, tag="sweep", points=points, config=config, attempt={"seedless_hash": f"{i}"}
        )
    make_run(project, tag="other", points={"train/loss": [1.0]}, config="same = 1")

    done = assay("plot", "tag = sweep", "-m", "loss", "-m", "acc", "-o", "fig.svg")
    found = lines(select_runs(["tag = sweep"]), ["loss", "acc"])

    assert done.code == 0, done.err
    assert done.lines[0] == "lr=0.5  train/loss  2 points" and len(done.lines) == 2 * 9 + 1
    drawn = (project.root / "fig.svg").read_text()
    assert drawn.count('id="axes_') == 2
    looks = {
        (COLORS[at % len(COLORS)], DASHES[at // len(COLORS)])
        for at in {line.place for line in found}
    }
    assert len(looks) == 9
    assert all(color in drawn for color, _ in looks) and "stroke-dasharray" in drawn
    assert [line.place for line in found if line.label == "lr=3.5"] == [3, 3]


def test_commands_that_take_runs_take_an_expression(assay: Assay, project: Project) -> None:
    for tag, run_id in (("a", "aaaaaaa2"), ("a", "aaaaaaa3"), ("b", "bbbbbbb4")):
        make_run(project, tag=tag, id=run_id)

    archived = assay("archive", "tag = a")
    assert len(archived.lines) == 2 and archived.code == 0
    assert len(assay("ls").lines) == 2
    assert assay("rm", "tag = b and status = finished").lines[0].startswith("removed: bbbbbbb4")
    nothing = assay("rm", "tag = c")
    assert nothing.code == 2 and "No run fulfils `tag = c`." in nothing.err
    assert "There is no run `c`" in assay("archive", "c").err
