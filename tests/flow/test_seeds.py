"""The project of LiBai's tutorial in `examples/seeds/mnist`, ported by hand."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from assay.config import get_at, load, plain
from assay.core import run_file
from assay.store.series import read_series
from examples import EXAMPLES, SRC
from warm_python import Run

SEEDS = EXAMPLES / "seeds"


@pytest.fixture
def run(warm: Run) -> Run:
    """Runs a snippet in a process of its own that sees no GPU, to a good end."""
    return lambda script, *arguments, folder: well(warm, [str(SEEDS / script), *arguments], folder)


@pytest.fixture
def assay(warm: Run) -> Run:
    """The same for a command of assay."""
    return lambda *arguments, folder, **more: well(
        warm, ["-m", "assay", *arguments], folder, **more
    )


def well(
    run: Run, arguments: list[str], folder: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done: subprocess.CompletedProcess[str] = run(
        arguments, folder=folder, variables={**os.environ, **own, **more}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.row("E10")
def test_a_config_in_python_with_its_imports_and_objects_of_omegaconf(run, tmp_path: Path) -> None:
    done = run("mnist/show.py", folder=tmp_path)

    assert done.stdout.splitlines() == [
        "Linear(in_features=512, out_features=10, bias=True)",
        "Linear(in_features=512, out_features=10, bias=True)",
        "['losses'] [64]",
        "['prediction_scores'] (32, 10)",
        "0 20 128 10 1234",
        "Section(enabled=True)",
    ]
    file = SEEDS / "mnist" / "config.py"
    config = load(file)
    assert {"model", "dataloader", "train"} <= config.root.items.keys()
    assert (
        plain(get_at(config.root, ("train", "seed")) or config.root) == 1234
    )  # of the imported defaults
    assert plain(get_at(config.root, ("evaluate", "every")) or config.root) == "100 steps"
    lines = file.read_text(encoding="utf-8").splitlines()
    told = {note.key: lines[note.origin.line - 1].strip() for note in config.notes}
    for key, text in {
        "eval_period": "eval_period=100,",
        "topk": "topk=(1,),",
        "recompute_grad": "recompute_grad=",
    }.items():
        assert told[f"train.{key}"].startswith(text)


@pytest.mark.row("E17", "E19")
def test_a_model_with_its_loss_inside_gives_losses_in_training_and_scores_in_evaluation(
    run, tmp_path: Path
) -> None:
    lines = run("mnist/train.py", folder=tmp_path).stdout.splitlines()

    assert lines == [
        "train: {'losses': ()}",
        "eval: {'prediction_scores': (32, 10)}",
        "4 steps, ['test/Acc@1']",
    ]


@pytest.mark.slow
@pytest.mark.row("E58")
def test_the_whole_project_of_the_tutorial_runs_to_its_end_and_learns_the_digits(
    assay, tmp_path: Path
) -> None:
    (tmp_path / ".assay").mkdir()
    project = str(SEEDS / "mnist" / "project.py")
    ran = assay("run", project, "--device", "cpu", folder=tmp_path, ASSAY_RUNS_DIR=str(tmp_path))

    assert "20 epochs x 32 (4,000 samples / 128, rounded up) = 640 steps" in ran.stderr
    (run_path,) = tmp_path.glob("*-mnist")
    curves = read_series(run_path / "metrics.bin")
    assert list(curves["test/Acc@1"].steps) == [*range(100, 601, 100), 640]
    assert float(curves["test/Acc@1"].values[-1]) > 0.9
    shown = re.findall(r"^epoch .*step +(\d+) ", ran.stderr, re.MULTILINE)
    assert [int(step) for step in shown] == list(range(10, 641, 10))
    best = run_file.read(run_path).best
    assert best is not None and best.metric == "test/Acc@1"
