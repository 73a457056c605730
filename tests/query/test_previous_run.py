"""What changed since the run before."""

from __future__ import annotations

import os

import pytest

from assay.query.diff import previous_run, since_previous
from assay.query.run import RunView
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import Project
from run_folders import make_run


def recorded(project: Project, config: str, tag: str = "exp") -> RunView:
    with start_run(project, AttemptSpec(config_toml=config), tag=tag) as run:
        pass
    return RunView(run.folder)


@pytest.mark.row("C50")
def test_changed_keys_and_files_since_the_run_before_are_one_line(project: Project) -> None:
    code = project.root / "model.py"
    code.write_text("a = 1\n")
    first = recorded(project, "[optimizer]\nlr = 0.01\n")
    recorded(project, "lr = 5\n", tag="another")
    code.write_text("a = 2\n")
    os.utime(code, ns=(1, 1))  # another time than before, whatever the clock of the disk

    second = recorded(project, "[optimizer]\nlr = 0.02\n")

    assert (
        since_previous(second)
        == f"vs previous run {first.id}: lr 0.01->0.02, 1 file changed (model.py)"
    )
    third = recorded(project, "[optimizer]\nlr = 0.02\n")
    assert since_previous(third) == f"vs previous run {second.id}: config and code are the same"
    assert since_previous(first) == ""


def test_keys_of_one_name_are_told_apart(project: Project) -> None:
    recorded(project, "[a]\nlr = 1\n[b]\nlr = 1\n")

    said = since_previous(recorded(project, "[a]\nlr = 2\n[b]\nlr = 3\n"))

    assert said.endswith("a.lr 1->2, b.lr 1->3")


def test_tests_and_damaged_runs_are_no_run_before(project: Project) -> None:
    first = make_run(project, tag="exp", age_s=500)
    make_run(project, tag="exp", age_s=400, kind="test")
    (make_run(project, tag="exp", age_s=300) / "run.json").write_text("{")

    found = previous_run(RunView(make_run(project, tag="exp", age_s=200)))

    assert found is not None
    assert found.path == first
