"""A run seen by TensorBoard: what is in its event files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import assay
from assay.core.errors import InputError
from assay.formats import run_file
from assay.store.series import read_series
from event_reader import pixels_of, read

from .conftest import CONFIG, Assay

pytestmark = pytest.mark.slow


def folder_of(toy: Path) -> Path:
    (folder,) = (toy / "runs").iterdir()
    return folder


def with_plugin(toy: Path, settings: str) -> None:
    plugin = f'plugins = [{{ type = "assay.plugins.TensorBoard"{settings} }}]\n'
    (toy / "toy.toml").write_text(plugin + CONFIG)


@pytest.mark.row("A32", "E56")
def test_all_that_is_logged_is_in_the_event_file_and_without_files_there_is_none(
    toy: Path, assay: Assay
) -> None:
    with_plugin(toy, "")

    done = assay("run", "toy.toml", "train.epochs=2")

    assert done.returncode == 0, done.stderr
    events, curves = read(folder_of(toy) / "board"), read_series(folder_of(toy) / "metrics")
    assert {"train/loss", "valid/acc", "speed/steps_per_s", "time/data_s"} <= set(events.scalars)
    for name, curve in curves.items():
        steps, values = zip(*events.scalars[name], strict=True)
        assert list(steps) == curve.steps.tolist()
        assert np.allclose(values, curve.values.astype(np.float32))
    assert assay("run", "toy.toml", "--no-file", ASSAY_RUNS_DIR=str(toy / "none")).returncode == 0
    assert not (toy / "none").exists()


@pytest.mark.thorough
@pytest.mark.row("C67", "B29")
def test_metrics_are_chosen_by_pattern_every_n_steps_or_by_epoch(toy: Path, assay: Assay) -> None:
    with_plugin(toy, ', scalars = ["train/loss", "valid/*"], every = 4')
    assert assay("run", "toy.toml", "train.epochs=2").returncode == 0
    events = read(folder_of(toy) / "board")
    assert set(events.scalars) == {"train/loss", "valid/acc", "valid/loss"}
    assert [step for step, _ in events.scalars["train/loss"]] == [4, 8, 12, 16]

    with_plugin(toy, ', scalars = ["valid/acc"], by = "epoch"')
    others = {"ASSAY_RUNS_DIR": str(toy / "others")}
    assert assay("run", "toy.toml", "train.epochs=2", **others).returncode == 0
    (other,) = (toy / "others").iterdir()
    assert [step for step, _ in read(other / "board").scalars["valid/acc"]] == [1, 2]


@pytest.mark.thorough
@pytest.mark.row("B31")
def test_one_switch_gives_a_histogram_of_each_parameter(toy: Path, assay: Assay) -> None:
    with_plugin(toy, ', parameters = "1 epoch"')
    assert assay("run", "toy.toml", "train.epochs=2").returncode == 0

    events = read(folder_of(toy) / "board")
    sizes = {"0.weight": 32, "0.bias": 8, "1.weight": 8, "1.bias": 8, "4.weight": 16, "4.bias": 2}
    found = {tag: rows for tag, rows in events.histograms.items() if tag.startswith("parameters/")}
    assert found.keys() == {f"parameters/layers.{name}" for name in sizes}
    for name, size in sizes.items():
        rows = found[f"parameters/layers.{name}"]
        assert [(step, histogram["num"]) for step, histogram in rows] == [(8, size), (16, size)]


@pytest.mark.row("B31")
def test_histograms_of_bfloat16_and_of_numbers_that_are_none(tmp_path: Path) -> None:
    board = assay.TensorBoard()
    with assay.start(project=tmp_path) as run:
        run.attach(board)
        weights = torch.nn.Parameter(torch.arange(10, dtype=torch.bfloat16))
        board.histogram("w", weights, 3)
        board.histogram("odd", [1.0, math.nan, math.inf, 2.0], 3)

    assert run.folder is not None
    ((step, found),) = read(run.folder.path / "board").histograms["w"]
    assert (step, found["min"], found["max"], found["num"]) == (3, 0.0, 9.0, 10.0)
    ((_, odd),) = read(run.folder.path / "board").histograms["odd"]
    assert (odd["min"], odd["max"], odd["num"]) == (1.0, 2.0, 2.0)


@pytest.mark.row("B30", "B29")
def test_a_script_writes_scalars_and_a_grid_of_twelve_images_a_row(tmp_path: Path) -> None:
    board = assay.TensorBoard()
    with assay.start(project=tmp_path) as run:
        run.attach(board)
        for step in range(1, 4):
            run.log({"train/loss": 1 / step, "test/acc": step / 4}, step)
        board.images("batch", torch.rand(30, 1, 28, 28), 3)
        board.text("note", "some **text**", 1)

    assert run.folder is not None
    events = read(run.folder.path / "board")
    assert dict(events.scalars) == {
        "train/loss": [(step, np.float32(1 / step)) for step in (1, 2, 3)],
        "test/acc": [(step, step / 4) for step in (1, 2, 3)],
    }
    ((step, height, width, png),) = events.images["batch"]
    assert (step, width, height) == (3, 12 * 30 + 2, 3 * 30 + 2)
    assert pixels_of(png)[:2] == (width, height)
    assert events.texts["note"] == [(1, "some **text**")]
    assert run_file.read(run.folder.path).status == "finished"


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="no number of steps"):
        assay.TensorBoard(every=0)
    with pytest.raises(InputError, match="no axis"):
        assay.TensorBoard(by="time")  # type: ignore[arg-type]
