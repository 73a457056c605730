"""Run with sharded weights: trained, saved, killed, resumed in any layout, loaded as one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import assay as assay_package
from assay.engine.checkpoint.folder import load_parts
from assay.formats import manifest, run_file
from assay.store.series import read_series
from flow.conftest import as_it_was
from flow.test_train import last_digest, only_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shy")]
DEADLY = """\
import os
import signal

import points
from assay.engine.checkpoint import together


def deadly(name):
    real, calls = getattr(together, name), []

    def call(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2 and os.environ.get("RANK") == os.environ.get("DIE_ON"):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(together, name, call)


if "DIE_IN" in os.environ:
    deadly(os.environ["DIE_IN"])


class Deadly(points.Points):
    pass
"""
EXACT = ["model.type=plain.Net", "optimizer.type=torch.optim.SGD", "optimizer.lr=0.5"]


WIDE = """\
import torch
from torch import nn


TABLES = []


class Net(nn.Module):
    def __init__(self, width, keeps=False):
        super().__init__()
        if keeps:
            TABLES.append(torch.rand(300, 300))
        self.inlet = nn.Linear(4, 300)
        self.blocks = nn.Sequential(*[nn.Linear(300, 300) for _ in range(3)])
        self.outlet = nn.Linear(300, 2)
        self.apply(self.begin)

    def begin(self, module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight)

    def pipeline_split(self):
        return [self.inlet, *self.blocks, self.outlet]

    def forward(self, x):
        return self.outlet(self.blocks(self.inlet(x)))


class Loss(nn.Module):
    \"""Draws after the model.\"""

    reduction = "mean"

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2), requires_grad=False)

    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target, self.weight.detach() + 1)
"""


def newest(run: Path) -> Path:
    return sorted(run.glob("checkpoints/step-?????????"))[-1]


@pytest.mark.row("E37", "E12")
def test_zero_trains_what_one_process_does_and_its_checkpoint_loads_into_one(
    assay, toy: Path
) -> None:
    alone = assay("run", "toy.toml", *EXACT, "train.accumulate=2")
    assert alone.returncode == 0, alone.stderr
    one = only_run(toy)
    one.rename(toy.parent / "one")

    shared = assay(
        "run", "toy.toml", *EXACT, "parallel.data=2", "zero.enabled=true", "parallel.zero.stage=2"
    )

    assert shared.returncode == 0, shared.stderr
    assert "mesh: shard 2 = 2 processes" in shared.stderr
    assert "ZeRO stage 2: data 2 is shard 2" in shared.stderr
    two = only_run(toy)
    curves = [read_series(run / "metrics") for run in (toy.parent / "one", two)]
    for name in ("train/loss", "train/grad_norm", "valid/loss", "valid/acc"):
        assert list(curves[1][name].steps) == list(curves[0][name].steps)
        assert list(curves[1][name].values) == pytest.approx(list(curves[0][name].values), abs=1e-5)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.warns(UserWarning, match="was made elsewhere"),
    ):
        patch.chdir(toy)
        models = [assay_package.load_model(str(run), "latest") for run in (toy.parent / "one", two)]
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6, rtol=0)
    tested = assay("test", str(two))
    assert tested.returncode == 0, tested.stderr


@pytest.mark.thorough
@pytest.mark.row("C38")
def test_each_process_writes_what_it_has_and_a_killed_run_goes_on_to_the_same_bits_or_in_any_number_of_them(
    assay, toy: Path
) -> None:
    assert assay("run", "toy.toml", "parallel.shard=2").returncode == 0
    whole = last_digest(only_run(toy))
    only_run(toy).rename(toy.parent / "reference")

    killed = assay("run", "toy.toml", "parallel.shard=2", KILL_AT="50")

    assert killed.returncode == 1
    assert "killed" in killed.stderr and "ank 1" in killed.stderr
    run = only_run(toy)
    found = newest(run)
    for name in ("model.safetensors", "model-rank1.safetensors"):
        with safe_open(found / name, framework="pt") as file:
            assert file.get_slice("layers.0.weight").get_shape() == [4, 4]
    assert [(axis.name, axis.size) for axis in manifest.read(found).layout if axis.size > 1] == [
        ("shard", 2)
    ]
    assert load_parts(found)["model"]["layers.0.weight"].shape == (8, 4)

    with as_it_was(run):
        resumed = assay("resume", "last")
        assert resumed.returncode == 0, resumed.stderr
        assert last_digest(run) == whole
        assert list(read_series(run / "metrics")["train/loss"].steps) == list(range(1, 33))

    with as_it_was(run):
        damaged = newest(run)
        path = damaged / "optimizer-rank1.safetensors"
        data = path.read_bytes()
        path.unlink()  # the checkpoint before may share it
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        resumed = assay("resume", "last")
        assert resumed.returncode == 0, resumed.stderr
        told = (
            f"{damaged.name} is no checkpoint: The checkpoint is damaged: {path.name} is not what"
        )
        assert told in resumed.stderr
        assert last_digest(run) == whole

    for layout in (
        ["parallel.shard=1"],
        ["parallel.shard=4"],
        ["parallel.shard=2", "parallel.data=2"],
    ):
        step = read_series(run / "metrics")["train/loss"].steps[-1]
        resumed = assay("resume", "last", *layout, "train.epochs=60", "--max-steps", str(step + 4))
        assert resumed.returncode == 0, resumed.stderr
        assert "took its state from the checkpoint" not in resumed.stderr
        assert list(read_series(run / "metrics")["train/loss"].steps) == list(range(1, step + 5))
    assert run_file.read(run).status == "finished"


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "rank"), [("write_own", 1), ("publish_together", 0)])
def test_a_process_killed_while_it_saves_leaves_the_checkpoint_before(
    assay, toy: Path, place: str, rank: int
) -> None:
    (toy / "deadly.py").write_text(DEADLY)
    config = (toy / "toy.toml").read_text().replace("shy.Shy", "deadly.Deadly")
    (toy / "toy.toml").write_text(config)

    killed = assay("run", "toy.toml", "parallel.shard=2", DIE_IN=place, DIE_ON=str(rank))

    assert killed.returncode == 1
    run = only_run(toy)
    assert newest(run).name == "step-000000003"
    resumed = assay("resume", "last", "--max-steps", "9")
    assert resumed.returncode == 0, resumed.stderr
    assert newest(run).name == "step-000000009"
    assert not list(run.glob("checkpoints/*.tmp"))


@pytest.mark.row("E37")
@pytest.mark.parametrize("layout", ["shard=2", "pipeline=2"])
def test_ranks_that_build_their_own_part_begin_with_the_weights_of_one_process(
    assay, toy: Path, layout: str
) -> None:
    (toy / "wide.py").write_text(WIDE)
    loss = 'process.criterion={type="wide.Loss"}'
    frozen = ["model.type=wide.Net", "optimizer.type=torch.optim.SGD", "optimizer.lr=0.0", loss]
    kept = []
    for more in ([], [f"parallel.{layout}", "train.accumulate=2", "train.steps=1"]):
        done = assay("run", "toy.toml", *frozen, *more)
        assert done.returncode == 0, done.stderr
        assert "built whole" not in done.stderr
        run = only_run(toy)
        kept.append(load_parts(newest(run))["model"])
        run.rename(toy.parent / f"run-{len(kept)}")

    assert kept[0].keys() == kept[1].keys()
    assert all(torch.equal(weight, kept[1][name]) for name, weight in kept[0].items())


def test_a_model_that_is_built_whole_is_told_with_the_reason(assay, toy: Path) -> None:
    (toy / "wide.py").write_text(WIDE)
    wide = ["model.type=wide.Net", "model.keeps=true", "train.steps=1"]

    done = assay("run", "toy.toml", *wide, "parallel.shard=2")

    assert done.returncode == 0, done.stderr
    line = (
        "built whole before it was divided: a large tensor is held outside of its modules, or twice"
    )
    assert done.stderr.count(line) == 1
