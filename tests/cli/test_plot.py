"""`assay plot`: curves of one run and of several in a file."""

from __future__ import annotations

import numpy as np
import pytest

from assay.query.find import find_run
from assay.report.figure import lines
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


@pytest.mark.row("C73")
def test_curves_are_written_into_a_file_repeats_as_their_mean_with_a_band(
    assay: Assay, project: Project, runs: list[str]
) -> None:
    done = assay("plot", *runs, "-m", "loss", "-o", "fig.pdf", "--title", "losses")

    assert done.code == 0, done.err
    assert done.lines == ["small (mean of 2)  3 points", "big  2 points", "written: fig.pdf"]
    assert (project.root / "fig.pdf").read_bytes().startswith(b"%PDF")
    again = (project.root / "fig.pdf").read_bytes()
    assert assay("plot", *runs, "-m", "loss", "-o", "fig.pdf", "--title", "losses").code == 0
    assert (project.root / "fig.pdf").read_bytes() == again

    mean, alone = lines([find_run(run) for run in [*runs, runs[0]]], ["train/loss"])
    assert mean.xs.tolist() == [1, 2, 3]  # where both have a point
    assert mean.ys.tolist() == [3, 2, 2]
    assert mean.band is not None and np.allclose(mean.band, [np.sqrt(2), 0, np.sqrt(2)])
    assert (mean.runs, alone.runs, alone.band) == (("aaaaaaaa", "bbbbbbbb"), ("cccccccc",), None)


def test_one_run_may_show_several_curves_and_other_kinds_of_files(
    assay: Assay, project: Project, runs: list[str]
) -> None:
    for name, head in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        done = assay("plot", runs[0], "-m", "train/loss", "-m", "acc", "-o", name, "--log")
        assert done.lines[:2] == ["small train/loss  3 points", "small valid/acc  2 points"]
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
        ((runs[0], "-o", "a.pdf"), "needs the option metric"),
    ):
        done = assay("plot", *arguments)
        assert done.code == 2 and said in done.err
