"""Layers divided among processes: the run is that of one process, and so are its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import assay as assay_package
from assay.store.series import read_series
from flow.conftest import as_it_was
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow

MLP = """\
from torch import nn

class MLP(nn.Sequential):
    def __init__(self, width):
        first, second, last = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 2)
        super().__init__(first, nn.Tanh(), second, nn.LayerNorm(width), last)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.scale, self.down = nn.Linear(4, 8), nn.PReLU(), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(self.scale(self.up(x)))

    def tensor_plan(self):
        return {"up": "colwise", "down": "rowwise"}
"""
LISTENERS = """
[[plugins]]
type = "assay.engine.EMA"
decay = 0.9
[[plugins]]
type = "assay.engine.Norms"
every = "4 steps"
"""


@pytest.fixture(autouse=True)
def mlp(toy: Path, shy: None) -> None:
    (toy / "mlp.py").write_text(MLP)
    config = (toy / "toy.toml").read_text().replace("net.Net", "mlp.MLP")
    # Of a run that is cut short a schedule would be another one.
    config = config.replace(
        '[schedule]\ntype = "assay.engine.WarmupCosine"\nwarmup_ratio = 0.1\n', ""
    )
    head, _, rest = config.partition("[model]")
    (toy / "toy.toml").write_text(f"{head}{LISTENERS}\n[model]{rest}")


@pytest.mark.thorough
@pytest.mark.row("E49", "E55")
def test_a_run_of_divided_layers_is_that_of_one_process_and_each_goes_on_from_the_other(
    assay, toy: Path
) -> None:
    exact = [
        "optimizer.type=torch.optim.SGD",
        "optimizer.lr=0.1",
        "+optimizer.momentum=0.9",
        "train.clip_norm=0.3",
    ]
    exact += ["checkpoint.every=8 steps", "checkpoint.keep=9"]
    alone = assay("run", "toy.toml", *exact)
    assert alone.returncode == 0, alone.stderr
    one = only_run(toy).rename(toy.parent / "one")

    whole = assay("run", "toy.toml", *exact, "parallel.tensor=2")
    assert whole.returncode == 0, whole.stderr
    assert "mesh: tensor 2 = 2 processes" in whole.stderr
    assert "each process has a part of 0, 2" in whole.stderr
    undisturbed = last_digest(only_run(toy))
    only_run(toy).rename(toy.parent / "undisturbed")
    killed = assay("run", "toy.toml", *exact, "parallel.tensor=2", KILL_AT="120")
    assert killed.returncode == 1
    assert "error: Rank 1 (pid " in killed.stderr
    two = only_run(toy)
    with as_it_was(two):
        resumed = assay("resume", "last")
        assert resumed.returncode == 0, resumed.stderr
        assert last_digest(two) == undisturbed
    gone_on = assay("resume", "last", "parallel.tensor=1")
    assert gone_on.returncode == 0, gone_on.stderr

    same(one, two)
    again = assay("resume", f"{two.name.split('-')[2]}@step-000000024", "parallel.tensor=2")
    assert again.returncode == 0, again.stderr
    assert "resume is not exact" not in gone_on.stderr + again.stderr
    same(one, two)
    tested = assay("test", "last")
    assert tested.returncode == 0, tested.stderr


def same(one: Path, two: Path) -> None:
    curves = [read_series(run / "metrics") for run in (one, two)]
    norms = [name for name in curves[0] if name.startswith(("grad_norm/", "weight_norm/"))]
    assert norms
    for name in ("train/loss", "train/grad_norm", "valid/loss", "valid/acc", *norms):
        mine, theirs = (
            dict(zip(curve[name].steps, curve[name].values, strict=True)) for curve in curves
        )
        assert theirs == pytest.approx(mine, rel=1e-4, abs=1e-5), name
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.warns(UserWarning, match="was made elsewhere"),
    ):
        patch.chdir(one.parent / "toy project")
        models = [assay_package.load_model(str(run), "latest") for run in (one, two)]
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.thorough
def test_what_a_plan_gets_wrong_is_told(assay, toy: Path) -> None:
    uneven = assay("run", "toy.toml", "parallel.tensor=2", "model.width=7")
    assert uneven.returncode == 2
    assert "tensor = 2 does not divide 0.out_features = 7: 7 / 2 = 3.5" in uneven.stderr
    unknown = assay("run", "toy.toml", "parallel.tensor=2", "model.type=net.Net")
    assert unknown.returncode == 2
    assert "how a Net is divided among processes is not known" in unknown.stderr
    assert not (toy / "runs").exists()
    torn = assay("run", "toy.toml", "parallel.tensor=2", "model={ type = 'mlp.Scaled' }")
    assert torn.returncode == 2
    assert "each process finds another gradient of scale.weight" in torn.stderr
