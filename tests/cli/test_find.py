"""`assay find`, `pack`, `unpack`, `restore`: files of runs, and runs as files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.record.recorder import RunRecorder
from assay.store.layout import Project
from run_folders import make_checkpoint, make_project

from .conftest import Assay


@pytest.fixture
def run(project: Project) -> RunRecorder:
    (project.root / "model.py").write_text("x = 1\n")
    with start_run(
        project, AttemptSpec(config_toml="lr = 0.1\n", command=["python", "train.py"]), tag="first"
    ) as recorder:
        recorder.artifact(b"a picture", "plots/a.png")
    return recorder


@pytest.mark.row("C47")
def test_the_run_that_made_a_copied_file_is_named(
    assay: Assay, run: RunRecorder, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.bin"
    copy.write_bytes(b"a picture")

    assert assay("find", str(copy)).out == f"{run.id}  first  artifact  plots/a.png\n"
    (row,) = json.loads(assay("find", str(copy), "--json").out)
    assert (row["run"], row["what"]) == (run.id, "artifact")
    assert "plots/a.png" in assay("find", "png").out
    copy.write_bytes(b"another picture")
    unknown = assay("find", str(copy))
    assert (unknown.code, unknown.out) == (1, "")
    assert "--all-projects" in unknown.err
    assert assay("find", "no/such.file").code == 2


def test_a_run_goes_into_a_file_and_into_another_project(
    assay: Assay, run: RunRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "one.tar.gz"
    assert assay("pack", "last", "--to", str(file)).out.startswith(f"packed: {file}")
    shutil.rmtree(tmp_path / "project")
    other = make_project(tmp_path / "other")
    monkeypatch.chdir(other.root)

    assert assay("unpack", "--check", str(file)).out.startswith(f"as packed: {run.id}")
    assert assay("ls").out.startswith("There are no runs yet")
    assert assay("unpack", str(file)).code == 0

    assert "first" in assay("ls").out
    assert assay("unpack", str(file)).code == 2
    assay("restore", "last", "--to", "again")
    assert Path("again/model.py").read_text() == "x = 1\n"


@pytest.mark.row("C48", "D27")
def test_code_and_command_of_a_run_come_back(
    assay: Assay, project: Project, run: RunRecorder
) -> None:
    (project.root / "model.py").write_text("x = 2\n")

    said = assay("restore", "first", "--to", "again")

    assert Path("again/model.py").read_text() == "x = 1\n"
    assert "it was started by: python train.py" in said.out
    full = assay("restore", "first", "--to", "again")
    assert full.code == 2 and "--force moves it away" in full.err
    moved = assay("restore", "first", "--to", "again", "--force")
    assert moved.code == 0 and "moved away: again.old-1" in moved.err
    facts = json.loads(assay("show", "first", "--json").out)["attempts"][0]
    assert facts["command"] == ["python", "train.py"]
    assert {"cwd", "started_ns", "ended_ns", "environment"} <= facts.keys()


@pytest.mark.row("C48")
def test_a_checkpoint_is_restored_beside_the_code(
    assay: Assay, project: Project, run: RunRecorder
) -> None:
    make_checkpoint(run.folder.path, 100)

    said = assay("restore", "first@100", "--to", "again")

    assert "checkpoint: again/checkpoints/step-000000100" in said.out
    assert Path("again/checkpoints/step-000000100/manifest.json").exists()
    assert Path("again/.assay").is_dir(), "it is a project of its own: what runs there stays there"
    none = assay("restore", "first@7", "--to", "other")
    assert none.code == 2 and "it has 100" in none.err
    assert not Path("other").exists()


def test_a_run_without_code_cannot_be_restored(assay: Assay, project: Project) -> None:
    with start_run(project, AttemptSpec(keep_code=False)) as run:
        pass

    said = assay("restore", "last")

    assert said.code == 2 and f"No code was kept with {run.id}" in said.err
