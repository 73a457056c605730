"""The examples do what they say: their data is what it claims to be, and each of them trains."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.core import run_file
from assay.store.series import read_series

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Assay = Callable[..., "object"]


def test_the_digits_are_five_thousand_balanced_and_split_without_overlap() -> None:
    with np.load(EXAMPLES / "01_digits" / "digits.npz") as file:
        images, labels = file["images"], file["labels"]

    assert images.shape == (5000, 28, 28) and images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [500] * 10
    assert (EXAMPLES / "01_digits" / "digits.npz").stat().st_size < 1_000_000


@pytest.mark.slow
def test_the_digits_train_from_another_folder(assay, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "01_digits", tmp_path / "a folder" / "digits")

    ran = assay("run", "a folder/digits/digits.toml", "--max-steps", "8", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run_file.read(run).status == "finished"
    losses = read_series(run / "metrics.bin")["train/loss"]
    assert losses.steps.tolist() == list(range(1, 9)) and losses.values[-1] < losses.values[0]


@pytest.mark.slow
@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*/*.toml")), ids=lambda path: path.stem)
def test_the_config_of_an_example_is_sound(assay, config: Path, tmp_path: Path) -> None:
    checked = assay("check", str(config), cwd=tmp_path)

    assert checked.returncode == 0, checked.stdout
    assert "fine" in checked.stdout
