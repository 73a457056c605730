"""From one config file to a recorded, trained model, by the commands a user types."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.formats import manifest, run_file
from assay.store.series import read_series

Assay = Callable[..., "object"]

pytestmark = pytest.mark.slow


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def last_digest(run: Path) -> str:
    steps = sorted(
        path
        for path in (run / "checkpoints").iterdir()
        if manifest.step_of_folder(path.name) is not None
    )
    return manifest.read(steps[-1]).digest


def test_a_run_is_trained_recorded_listed_shown_tested_and_compared(
    assay, cold_assay, toy: Path
) -> None:
    ran = cold_assay("run", "toy.toml", "--desc", "why not")
    assert ran.returncode == 0, ran.stderr
    run = only_run(toy)
    file = run_file.read(run)
    assert (file.status, file.sealed, file.newest.to_step) == ("finished", True, 32)
    assert file.best is not None and file.best.metric == "valid/acc"
    curves = read_series(run / "metrics")
    assert list(curves["train/loss"].steps) == list(range(1, 33))
    assert list(curves["valid/acc"].steps) == [8, 16, 24, 32]

    listed = cold_assay("ls")
    assert "toy" in listed.stdout and "finished" in listed.stdout and "valid/acc" in listed.stdout
    shown = cold_assay("show", "last")
    assert (
        "why not" in shown.stdout and "train/loss" in shown.stdout and "width = 8" in shown.stdout
    )

    tested = assay("test", "last")
    assert tested.returncode == 0, tested.stderr
    assert "test/acc" in tested.stdout

    assert assay("run", "toy.toml", "optimizer.lr=0.5", "train.epochs=1").returncode == 0
    compared = cold_assay("diff", "last", "last-1", "--config")
    assert compared.returncode == 1
    assert "optimizer.lr" in compared.stdout and "train.epochs" in compared.stdout


@pytest.mark.row("E13")
def test_an_override_changes_what_is_trained_and_a_mistyped_one_is_refused(
    assay, toy: Path
) -> None:
    ran = assay("run", "toy.toml", "train.epochs=1", "model.width=16")
    assert ran.returncode == 0, ran.stderr
    assert run_file.read(only_run(toy)).newest.to_step == 8
    assert "width = 16" in (only_run(toy) / "config.toml").read_text()

    wrong = assay("run", "toy.toml", "trian.epochs=1")
    assert wrong.returncode == 2
    assert "did you mean `train`?" in wrong.stderr
    assert len(list((toy / "runs").iterdir())) == 1


@pytest.mark.row("A10", "F06")
def test_three_mistakes_of_shape_are_told_at_once_before_torch_is_imported(
    cold_assay, toy: Path
) -> None:
    text = (toy / "toy.toml").read_text()
    text = (
        text.replace("[train]", "[trian]")
        .replace("keep = 2", 'keep = "two"')
        .replace("3 steps", "3 stops")
    )
    (toy / "bad.toml").write_text(text)
    (toy / "torch.py").write_text("raise SystemExit('torch was imported')")

    wrong = cold_assay("run", "bad.toml")

    assert wrong.returncode == 2
    assert "3 errors" in wrong.stderr
    assert "bad.toml:31:2" in wrong.stderr and "did you mean `train`?" in wrong.stderr
    assert "torch was imported" not in wrong.stderr
    assert not (toy / "runs").exists()


def test_a_wrong_argument_is_named_with_its_nearest_neighbour(assay, toy: Path) -> None:
    wrong = assay("run", "toy.toml", "optimizer.lrr=0.01")
    assert wrong.returncode == 2
    assert "lrr" in wrong.stderr and "did you mean `lr`?" in wrong.stderr


@pytest.mark.row("E42")
@pytest.mark.parametrize(
    ("metric", "evaluate"),
    [("vaild/acc", ""), ("valid/acc", 'every = "never"'), ("valid/acc", 'splits = ["test"]')],
)
def test_a_best_that_can_never_be_judged_is_refused(
    assay, toy: Path, metric: str, evaluate: str
) -> None:
    text = (toy / "toy.toml").read_text().replace('metric = "valid/acc"', f'metric = "{metric}"')
    (toy / "toy.toml").write_text(f"{text}\n[evaluate]\n{evaluate}\n")

    wrong = assay("run", "toy.toml")

    assert wrong.returncode == 2
    assert "toy.toml:38:19" in wrong.stderr and f"`{metric}` is never measured" in wrong.stderr
    assert not list((toy / "runs").glob("*"))


@pytest.mark.row("A13", "A15")
def test_launch_settings_stay_out_of_the_config_and_no_file_leaves_nothing(
    assay, toy: Path
) -> None:
    before = sorted(path.name for path in toy.iterdir())
    ran = assay(
        "run",
        "toy.toml",
        "--no-file",
        "--desc",
        "x",
        "--device",
        "cpu",
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in toy.iterdir()) == before

    assert assay("run", "toy.toml", "--max-steps", "1").returncode == 0
    assert assay("run", "toy.toml", "--max-steps", "1", "--desc", "x", "--debug").returncode == 0
    first, second = sorted((toy / "runs").iterdir())
    assert run_file.read(first).newest.config_hash == run_file.read(second).newest.config_hash
    assert (first / "config.toml").read_text() == (second / "config.toml").read_text()


def test_the_same_config_gives_the_same_bits(assay, toy: Path) -> None:
    assert assay("run", "toy.toml").returncode == 0
    assert assay("run", "toy.toml").returncode == 0
    first, second = (toy / "runs").iterdir()
    assert last_digest(first) == last_digest(second)


@pytest.mark.row("A85")
def test_a_test_gives_bit_for_bit_what_the_training_measured(assay, toy: Path) -> None:
    assert assay("run", "toy.toml").returncode == 0
    train = only_run(toy)
    measured = read_series(train / "metrics")["valid/loss"].values[-1]

    assert assay("test", "last@latest", "--split", "valid").returncode == 0

    (test,) = set((toy / "runs").iterdir()) - {train}
    again = read_series(test / "metrics")["valid/loss"].values[-1]
    assert measured == again
    assert run_file.read(test).parent.startswith(run_file.read(train).id)


def test_the_model_of_a_run_comes_back_in_eval_mode(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    import assay as face

    assert assay("run", "toy.toml").returncode == 0
    monkeypatch.chdir(toy)
    model = face.load_model("last", "best")
    assert not model.training
    assert model(torch.zeros(2, 4)).shape == (2, 2)


@pytest.mark.thorough
@pytest.mark.row("C54")
@pytest.mark.usefixtures("forking")
def test_a_config_from_init_trains_and_its_test_passes(assay, tmp_path: Path) -> None:
    made = assay("init", str(tmp_path / "new"))
    assert made.returncode == 0 and "around it" not in made.stdout
    ran = assay("run", "config.toml", cwd=tmp_path / "new")
    assert ran.returncode == 0, ran.stderr
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "new",
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0 and "2 passed" in tested.stdout, tested.stdout + tested.stderr
    again = assay("init", str(tmp_path / "new"))
    assert again.returncode == 2 and "config.toml" in again.stderr
    inner = assay("init", "inner", cwd=tmp_path / "new")
    assert f"part of the project around it, with its runs: {tmp_path / 'new'}" in inner.stdout


@pytest.mark.thorough
def test_check_says_fine_or_everything_that_is_wrong(assay, toy: Path) -> None:
    assert assay("check", "toy.toml").returncode == 0
    for settings, kinds in (
        (("optimizer.lrr=1", "train.epochs=many", "trane.seed=1"), ["unknown-key", "wrong-type"]),
        (("optimizer.lrr=1", "model.widht=3"), ["unknown-argument"] * 2),  # the text is right
    ):
        wrong = assay("check", "toy.toml", *settings, "--json")
        assert wrong.returncode == 2
        assert sorted(problem["kind"] for problem in json.loads(wrong.stdout)) == kinds


def test_events_lists_who_listens(assay, toy: Path) -> None:
    shown = assay("check", "--show", "callbacks", "toy.toml")
    assert shown.returncode == 0, shown.stderr
    assert "epoch_end" in shown.stdout and "Evaluate" in shown.stdout and "Save" in shown.stdout
    refused = assay("check", "--show", "callbacks", "toy.toml", "evaluate.evry=3")
    assert (refused.returncode, refused.stdout) == (
        2,
        "",
    ) and "did you mean `every`?" in refused.stderr
