"""A run is trained again: with other keys, from its kept code, on another machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from assay.formats import run_file
from assay.formats.run_file import RunFile
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow


def newest(folder: Path) -> tuple[Path, RunFile]:
    runs = [(path, run_file.read(path)) for path in (folder / "runs").iterdir()]
    return max(runs, key=lambda pair: pair[1].created_ns)


@pytest.mark.thorough
@pytest.mark.row("F13", "C50", "E56")
def test_a_run_is_trained_again_by_its_id_with_changed_keys(assay, toy: Path) -> None:
    assert assay("run", "toy.toml").returncode == 0
    first = only_run(toy)
    rows = [json.loads(line) for line in assay("metrics", "last", "--json").stdout.splitlines()]
    assert {
        "train/loss",
        "train/lr",
        "valid/acc",
        "speed/samples_per_s",
        "time/data_s",
    } <= set().union(*(row["metrics"] for row in rows))
    assert all("step" in row for row in rows)

    again = assay("rerun", run_file.read(first).id)
    changed = assay("rerun", "last", "optimizer.lr=0.02", "train.epochs=1", "--desc", "faster?")

    assert (again.returncode, changed.returncode) == (0, 0), again.stderr + changed.stderr
    path, run = newest(toy)
    middle = next(
        run_file.read(each)
        for each in (toy / "runs").iterdir()
        if run_file.read(each).id == run.parent
    )
    assert middle.parent == run_file.read(first).id
    assert "lr = 0.02" in (path / "config.toml").read_text()
    said = f"vs previous run {middle.id}: lr 0.01->0.02, epochs 4->1"
    assert said in (path / "log.txt").read_text()
    repeated = next(
        each for each in (toy / "runs").iterdir() if run_file.read(each).id == middle.id
    )
    assert last_digest(repeated) == last_digest(first)
    wrong = assay("rerun", "last", "optimizr.lr=1")
    assert wrong.returncode == 2 and "did you mean `optimizer" in wrong.stderr


@pytest.mark.row("A31")
def test_a_restored_run_is_trained_to_the_same_bits_after_its_source_is_gone(
    assay, toy: Path
) -> None:
    assert assay("run", "toy.toml", "seed=7").returncode == 0
    run = only_run(toy)
    assert assay("pack", "last", "--to", "../run.tar.gz").returncode == 0
    digest = last_digest(run)
    toy.rename(toy.parent / "gone")
    elsewhere = toy.parent / "another machine"
    elsewhere.mkdir()

    assert assay("unpack", "../run.tar.gz", cwd=elsewhere).returncode == 0
    restored = assay("restore", "last", "--to", "../again", cwd=elsewhere)
    (command,) = [
        line for line in restored.stdout.splitlines() if line.startswith("run it again: ")
    ]
    config = Path(command.split()[-1]).name
    shutil.rmtree(toy.parent / "gone")
    done = assay("run", config, cwd=toy.parent / "again")

    assert done.returncode == 0, done.stderr
    assert last_digest(only_run(toy.parent / "again")) == digest


@pytest.mark.row("A31")
def test_a_run_moves_to_another_machine_by_two_commands(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert assay("run", "toy.toml", "--max-steps", "8").returncode == 0
    run = only_run(toy).name.split("-")[2]
    there = toy.parent / "another machine"
    (there / "home").mkdir(parents=True)
    assert assay("pack", "last", "--to", str(there / "run.tar.gz")).returncode == 0
    toy.rename(toy.parent / "gone")
    for name in ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(there / "home"))
    project = there / "project"
    project.mkdir()
    (there / "run.tar.gz").rename(project / "run.tar.gz")

    unpacked = assay("unpack", "run.tar.gz", cwd=project)
    assert f"resume it: assay resume {run}" in unpacked.stdout
    refused = assay("resume", run, "--max-steps", "12", cwd=project)
    assert not list(project.glob("*.py"))
    resumed = assay("resume", run, "--max-steps", "12", "--trust", cwd=project)
    again = assay("restore", run, "--to", ".", "--trust", cwd=project)

    assert refused.returncode == 2 and "then say --trust" in refused.stderr
    assert resumed.returncode == 0, resumed.stderr
    assert run_file.read(only_run(project)).newest.to_step == 12
    assert again.returncode == 2 and "something in this folder" in again.stderr


@pytest.mark.row("A31")
def test_the_code_of_an_unpacked_run_is_restored_beside_its_record(assay, toy: Path) -> None:
    assert assay("run", "toy.toml", "--max-steps", "8").returncode == 0
    project = toy.parent / "another"
    project.mkdir()
    assert assay("pack", "last", "--to", str(project / "run.tar.gz")).returncode == 0
    assert assay("unpack", "run.tar.gz", cwd=project).returncode == 0

    restored = assay("restore", "last", "--to", ".", cwd=project)

    assert restored.returncode == 0, restored.stderr
    assert {path.name for path in toy.glob("*.py")} <= {path.name for path in project.glob("*.py")}
