"""`assay diff`."""

from __future__ import annotations

import json
import math

import pytest

from assay.script import start
from assay.store.layout import Project
from run_folders import make_run

from .conftest import Assay


def record(project: Project, loss: float = 0.5, **config: object) -> str:
    with start("digits", config, project=project) as run:
        run.log({"train/loss": loss}, step=1)
    return run.id


@pytest.mark.row("A35")
def test_two_runs_are_compared_in_config_code_and_metrics(project: Project, assay: Assay) -> None:
    (project.root / "model.py").write_text("width = 3\ndepth = 1\n")
    left = record(project, loss=0.5, optimizer={"lr": 0.1}, name="a")
    (project.root / "model.py").write_text("width = 4\ndepth = 1\n")
    right = record(project, loss=0.25, optimizer={"lr": 0.01}, name="a")

    said = assay("diff", left, right)

    assert said.code == 1
    assert max(map(len, said.lines)) <= 80
    assert said.lines[0].startswith(f"left   {left}  digits  finished")
    assert said.lines[1].startswith(f"right  {right}")
    assert "Config\n  optimizer.lr  0.1 -> 0.01\n" in said.out
    assert "  train/loss  last           0.5          0.25         -0.25\n" in said.out
    assert "  changed     model.py\n" in said.out
    assert (
        "--- a/model.py\n+++ b/model.py\n@@ -1,2 +1,2 @@\n-width = 3\n+width = 4\n depth = 1\n"
        in said.out
    )
    assert "No difference in environment." in said.out


def test_equal_runs_exit_with_zero(project: Project, assay: Assay) -> None:
    (project.root / "model.py").write_text("width = 3\n")
    left, right = record(project, lr=1), record(project, lr=1)

    said = assay("diff", left, right)

    assert said.code == 0
    assert said.lines[-1] == "No difference in config, metrics, environment and code."


def test_only_the_parts_asked_for_count(project: Project, assay: Assay) -> None:
    left, right = record(project, lr=1), record(project, lr=2)

    assert assay("diff", left, right, "--metrics", "--env").code == 0
    said = assay("diff", left, right, "--config")
    assert said.code == 1
    assert "Metrics" not in said.out


def test_what_is_long_or_not_there_gets_lines_of_its_own(project: Project, assay: Assay) -> None:
    long = "x" * 60
    left = make_run(
        project, config=f'a = "{long}"\nb = 1\nc = ""\n', points={"loss": [math.nan], "m": [1.0]}
    )
    right = make_run(
        project, config=f'a = "{long}y"\nc = "\\u001b"\n', points={"loss": [1.0], "n": [2.0]}
    )

    said = assay("diff", str(left), str(right), "--config", "--metrics")

    assert f'  a\n    - "{long}"\n    + "{long}y"\n' in said.out
    assert "  b  1 -> (not there)\n" in said.out
    assert "\x1b" not in said.out
    assert "  loss  last           nan             1\n" in said.out
    assert "  m     last             1             -\n" in said.out


def test_programs_get_the_same(project: Project, assay: Assay) -> None:
    left, right = record(project, lr=1), record(project, lr=2)

    said = assay("diff", left, right, "--json")

    data = json.loads(said.out)
    assert said.code == 1
    assert (data["left"], data["right"], data["equal"]) == (left, right, False)
    assert data["config"] == [{"key": "lr", "left": "1", "right": "2"}]


def test_runs_without_code_are_not_called_equal_in_code(project: Project, assay: Assay) -> None:
    left, right = make_run(project), make_run(project)

    said = assay("diff", str(left), str(right))

    assert "No code was kept with either run." in said.out
    assert said.lines[-1] == "No difference in config, metrics and environment."


def test_a_run_that_is_not_there_is_wrong_input(project: Project, assay: Assay) -> None:
    make_run(project)

    said = assay("diff", "last", "last-1")

    assert said.code == 2
    assert "There is no run `last-1`." in said.err


def test_the_only_run_has_nothing_to_be_compared_with(project: Project, assay: Assay) -> None:
    make_run(project, id="abcdefgh")

    said = assay("diff")

    assert said.code == 2
    assert "abcdefgh is the only run: there is nothing to compare it with." in said.err


@pytest.mark.row("C50")
def test_one_run_alone_is_compared_with_the_one_before_it(project: Project, assay: Assay) -> None:
    left, right = record(project, lr=0.01), record(project, lr=0.02)

    said = assay("diff", right, "--config")

    assert said.code == 1
    assert left in said.lines[0] and right in said.lines[1]
    assert "  lr  0.01 -> 0.02" in said.lines
    first = assay("diff", left)
    assert first.code == 2 and "There is no run of the tag `digits` before" in first.err
