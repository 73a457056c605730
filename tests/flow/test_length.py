"""Length of a run with both epochs and steps: the first bound, or with the older names the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.formats import run_file
from flow.test_train import only_run

pytestmark = pytest.mark.slow


@pytest.mark.row("E30")
@pytest.mark.parametrize(
    ("bounds", "steps", "said"),
    [
        (
            "train_iter = 10\ntrain_epoch = 2",
            16,
            "the larger of 10 steps and 2 epochs x 8 = 16 steps",
        ),
        (
            "train_iter = 10\ntrain_epoch = 1",
            10,
            "the larger of 10 steps and 1 epoch x 8 = 8 steps",
        ),
        ("steps = 10\nepochs = 1", 8, "1 epoch x 8 (60 samples / 8, rounded up) = 8 steps"),
    ],
)
def test_the_bound_that_counts_ends_the_run_and_is_told(
    assay, toy: Path, bounds: str, steps: int, said: str
) -> None:
    config = toy / "toy.toml"
    config.write_text(config.read_text().replace("epochs = 4", bounds))

    ran = assay("run", "toy.toml")

    assert ran.returncode == 0, ran.stderr
    assert said in ran.stderr
    assert run_file.read(only_run(toy)).newest.to_step == steps
