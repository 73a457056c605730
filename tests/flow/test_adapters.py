"""Adapters of `peft` as they are: trained in ranks, kept without the weights below, resumed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from assay.engine import save_weights
from assay.engine.checkpoint.folder import load_parts
from assay.engine.checkpoint.tensor_file import read_tensors
from assay.store.series import read_series
from flow.conftest import PLAIN, SRC, as_it_was
from flow.test_train import last_digest, only_run
from warm_python import WarmPythons, forked

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.usefixtures("shy")]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "checkpoints.md"
NAMES = [
    f"net.base_model.model.{layer}.lora_{part}.default.weight" for layer in "03" for part in "AB"
]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPythons]:
    """Pythons with `peft` at hand, which takes three seconds to import, in each of 15 processes."""
    with forked({**os.environ, "PYTHONPATH": str(SRC)}, more=["peft"]) as pythons:
        yield pythons


@pytest.fixture
def adapted(toy: Path) -> None:
    """Toy project with the model of the page, on top of weights in a file."""
    pytest.importorskip("peft")
    found = re.search(r":caption: adapted\.py\n\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M)
    assert found is not None
    (toy / "adapted.py").write_text(found[1])
    plain: dict[str, type[torch.nn.Module]] = {}
    exec(PLAIN, plain)
    save_weights(plain["Net"](8), toy / "base.safetensors")


@pytest.mark.usefixtures("adapted")
@pytest.mark.parametrize("axis", ["data", "shard"])
def test_ranks_keep_the_adapters_alone_and_resume_from_them_to_the_same_bits(
    assay, toy: Path, axis: str
) -> None:
    how = ["model.type=adapted.Adapted", f"parallel.{axis}=2"]
    whole = assay("run", "toy.toml", *how)
    assert whole.returncode == 0, whole.stderr
    uncut = only_run(toy).rename(toy.parent / "uncut")

    killed = assay("run", "toy.toml", *how, KILL_AT="50")

    assert killed.returncode == 1 and "killed" in killed.stderr
    run = only_run(toy)
    newest = sorted(run.glob("checkpoints/step-?????????"))[-1]
    kept = load_parts(newest)
    assert list(kept["model"]) == list(kept["optimizer"]["state"]) == NAMES
    tensors = [name for file in newest.glob("*.safetensors") for name in read_tensors(file)]
    assert tensors and all("lora_" in name for name in tensors)
    assert any(kept["model"][name].any() for name in NAMES if "lora_B" in name)  # begins as zeros
    for layout in (f"parallel.{axis}=2", f"parallel.{axis}=1", "parallel.data=1 parallel.shard=2"):
        with as_it_was(run):
            resumed = assay("resume", "last", *layout.split())
            assert resumed.returncode == 0, resumed.stderr
            assert "not exact" not in resumed.stderr
            if layout == how[1]:
                assert last_digest(run) == last_digest(uncut)
            curves = [read_series(each / "metrics")["train/loss"] for each in (uncut, run)]
            assert list(curves[1].steps) == list(curves[0].steps)
    tested = assay("test", str(uncut))
    assert tested.returncode == 0, tested.stderr
