"""Step settings of a config: window, losses, optimizers, and a step that cannot be taken."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from assay.core.facts import Saved
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.formats.manifest import read as read_manifest
from assay.store.series import read_series
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow

OWN = """\
from assay.engine import OptimizerStep, OptimizerStepBase

class Two(OptimizerStepBase):
    '''Weights and biases, each by an optimizer of its own, made from those that the config has.'''

    def __init__(self, optimizers, clip_norm=None, factor=1.0):
        self.optimizers = optimizers
        self.backwards = [OptimizerStep(each, clip_norm=clip_norm) for each in optimizers.values()]
        self.factor = factor

    def begin(self, sizes):
        for each in self.backwards:
            each.begin(sizes)

    def __call__(self, loss):
        for i, each in enumerate(self.backwards):
            each.gradients.share_graph(keep=i == 0)
            each(loss * self.factor)

    def update(self, step):
        taken = [each.update(step) for each in self.backwards]
        self.loss = self.backwards[0].loss
        return all(taken)
"""

TWO = """\
[backward]
type = "own.Two"
factor = 2.0

[optimizer.weights]
type = "torch.optim.SGD"
lr = 0.1
momentum = 0.9
params = { type = "assay.engine.Groups", only = "*.weight" }

[optimizer.biases]
type = "torch.optim.AdamW"
lr = 0.1
params = { type = "assay.engine.Groups", only = "*.bias" }
"""

NAMED = """\
from torch.nn.functional import cross_entropy
from assay.engine import OptimizerStepBase, Mean, Process

class Several(Process):
    def __init__(self, model, backward: OptimizerStepBase | None = None):
        self.model = model
        self.metrics = {"loss": Mean()}
        if backward is not None:
            self.backward = backward

    def forward_step(self, batch):
        inputs, target = batch
        pred = self.model(inputs)
        kept = target >= 0
        words = cross_entropy(pred, target, reduction="sum"), kept.sum()
        return {"words": words, "small": pred.square().mean()}, {"loss": words}
"""

SPOILS = """\
import os
import torch
from torch import nn
import net

class Spoils(nn.Module):
    '''Passes on what comes, but for one step.'''

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.calls += 1
            if self.calls == int(os.environ.get("SPOIL_AT", 0)):
                return x * float("nan")
        return x

class Net(net.Net):
    def __init__(self, width):
        super().__init__(width)
        self.layers.insert(3, Spoils())
"""


def two_optimizers(toy: Path) -> None:
    config = (toy / "toy.toml").read_text()
    begin, rest = config.split("[optimizer]")
    _, rest = rest.split("[schedule]")
    _, rest = rest.split("[train]")
    (toy / "toy.toml").write_text(f"{begin}{TWO}\n[train]{rest}")
    (toy / "own.py").write_text(OWN)


WITHOUT = {
    "an attribute": "    backward = None\n    def __init__(self, model): self.model = model\n",
    "an argument": (
        "    def __init__(self, model, backward=None):\n"
        "        self.model, self.backward = model, backward\n"
    ),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_process_that_takes_no_backward_is_one_error_of_check_and_run(
    assay, toy: Path, name: str
) -> None:
    body = "    def forward_step(self, batch): ...\n"
    code = f"from assay.engine import Process\nclass Mine(Process):\n{WITHOUT[name]}{body}"
    (toy / "mine.py").write_text(code)
    before, _, after = (toy / "toy.toml").read_text().partition("[process]")
    rest = after[after.index("\n[") :]
    (toy / "toy.toml").write_text(f'{before}[process]\ntype = "mine.Mine"\n{rest}')

    for command in ("check", "run"):
        told = assay(command, "toy.toml")
        assert told.returncode == 2
        assert "Mine takes no `backward`" in told.stdout + told.stderr


@pytest.mark.row("A12")
def test_a_period_of_backward_is_so_many_micro_steps_of_one_step(assay, toy: Path) -> None:
    ran = assay(
        "run",
        "toy.toml",
        "backward.period=4",
        "data.train.drop_last=true",
        "train.epochs=4",
        "train.steps=25",
    )

    assert ran.returncode == 0, ran.stderr
    assert "a step has 8 = 4 accumulate x 2" in ran.stderr
    run = only_run(toy)
    newest = max((run / "checkpoints").glob("step-*"))
    state = _state_of(newest)
    assert (state["step"], state["micro_step"]) == (25, 100)
    losses = read_series(run / "metrics")["train/loss"]
    assert len(losses.values) == 25


def _state_of(folder: Path) -> dict[str, int]:
    from assay.engine.checkpoint.folder import load_parts

    assert read_manifest(folder).step
    state: dict[str, int] = load_parts(folder, parts=("state",))["state"]
    return state


@pytest.mark.thorough
@pytest.mark.row("A51")
def test_a_part_of_ones_own_with_two_optimizers_is_set_by_config_and_resumes_exactly(
    assay, toy: Path
) -> None:
    two_optimizers(toy)
    whole = assay("run", "toy.toml")
    assert whole.returncode == 0, whole.stderr
    digest = last_digest(only_run(toy))
    only_run(toy).rename(toy.parent / "reference")

    assert assay("run", "toy.toml", DIE_AT="100").returncode == -9
    resumed = assay("resume", "last")

    assert resumed.returncode == 0, resumed.stderr
    assert last_digest(only_run(toy)) == digest
    other = assay("run", "toy.toml", "backward.factor=1.0")
    assert other.returncode == 0, other.stderr
    assert last_digest(max((toy / "runs").iterdir(), key=lambda run: run.stat().st_mtime)) != digest


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("+backward.factr=1", "did you mean `factor`?"),
        ("train.non_finite=skip", "own.Two does not take it"),
        ("optimizer.biases.params.only=*.bais", "No parameter of the model fits '*.bais'"),
    ],
)
def test_what_a_part_of_ones_own_does_not_take_is_told(
    assay, toy: Path, given: str, what: str
) -> None:
    two_optimizers(toy)

    ran = assay("run", "toy.toml", given)

    assert ran.returncode == 2, ran.stderr
    assert what in ran.stderr and "<cli>:1" in ran.stderr
    assert not (toy / "runs").exists()


@pytest.mark.thorough
@pytest.mark.row("A54", "A53")
def test_each_of_several_losses_is_on_its_curve_and_debugging_changes_no_weight(
    assay, toy: Path
) -> None:
    (toy / "several.py").write_text(NAMED)
    config = (toy / "toy.toml").read_text()
    begin, rest = config.split("[process]")
    _, rest = rest.split("[optimizer]")
    process = '[process]\ntype = "several.Several"\n[backward.weights]\nsmall = 0.25\n[optimizer]'
    config = f"{begin}{process}{rest}".replace("best = ", "# ")
    (toy / "toy.toml").write_text(config)

    digests = []
    for tag, flags in {"plain": [], "debugged": ["--debug"]}.items():
        ran = assay("run", "toy.toml", "train.accumulate=2", "--tag", tag, *flags)
        assert ran.returncode == 0, ran.stderr
        (run,) = (toy / "runs").glob(f"*-{tag}")
        digests.append(last_digest(run))
        curves = read_series(run / "metrics")
        words, small = curves["train/loss/words"].values, curves["train/loss/small"].values
        assert curves["train/loss"].values == pytest.approx(
            [w + 0.25 * s for w, s in zip(words, small, strict=True)]
        )

    assert digests[0] == digests[1]
    misspelt = assay("run", "toy.toml", "+backward.weights.smal=1")
    assert misspelt.returncode == 2 and "did you mean `small`?" in misspelt.stderr, misspelt.stderr


@pytest.mark.thorough
def test_a_step_that_is_not_finite_is_named_and_leaves_a_keypoint_of_finite_weights(
    assay, toy: Path
) -> None:
    (toy / "spoils.py").write_text(SPOILS)
    override = ("model.type=spoils.Net", "train.epochs=8", "checkpoint.every=5 steps")

    ran = assay("run", "toy.toml", *override, SPOIL_AT="37")

    assert ran.returncode == 1, ran.stderr
    assert "The loss is nan at step 37." in ran.stderr
    assert "the output of layers.3 (Spoils) (nan)" in ran.stderr
    run = only_run(toy)
    assert run_file.read(run).status == "failed"
    saved = [
        each.fact for each in read_events(run / "events.jsonl") if isinstance(each.fact, Saved)
    ]
    assert (saved[-1].kind, saved[-1].step) == ("keypoint", 36)
    losses = read_series(run / "metrics")["train/loss"]
    assert losses.steps[-1] == 36 and all(map(math.isfinite, losses.values))

    resumed = assay(
        "resume", "last"
    )  # what spoilt it is gone: the run goes on as if it had never been
    assert resumed.returncode == 0, resumed.stderr
    digest = last_digest(run)
    run.rename(toy.parent / "spoilt")
    assert assay("run", "toy.toml", *override).returncode == 0
    assert last_digest(only_run(toy)) == digest


@pytest.mark.thorough
@pytest.mark.row("E51")
@pytest.mark.timeout(400)
def test_a_compiled_run_has_the_losses_of_a_plain_one_and_its_log_counts_the_graphs(
    assay, toy: Path
) -> None:
    shorter = ("train.steps=3", "evaluate.enabled=false")
    fast = (
        *shorter,
        'train.compile=["layers.0"]',
    )  # one layer: kernels of a whole model take a minute to compile
    losses = []
    for tag, given in {"plain": shorter, "compiled": fast}.items():
        ran = assay(
            "run",
            "toy.toml",
            *given,
            "--tag",
            tag,
            TORCHINDUCTOR_CACHE_DIR=str(toy.parent / "cache"),
        )
        if (
            tag == "compiled" and " " in torch.__file__
        ):  # torch itself cannot; that is said before the first step
            assert ran.returncode == 2 and "the path to torch holds a space" in ran.stderr
            return
        assert ran.returncode == 0, ran.stderr
        (run,) = (toy / "runs").glob(f"*-{tag}")
        losses.append(list(read_series(run / "metrics")["train/loss"].values))

    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert "compiled graphs: " in (run / "log.txt").read_text()


@pytest.mark.thorough
@pytest.mark.row("E35", "E15")
def test_a_run_that_computes_activations_again_has_the_bits_of_one_that_keeps_them(
    assay, toy: Path
) -> None:
    digests = []
    for tag, given in {"plain": (), "again": ("train.recompute_grad.enabled=true",)}.items():
        ran = assay("run", "toy.toml", "train.epochs=2", *given, "--tag", tag)
        assert ran.returncode == 0, ran.stderr
        (run,) = (toy / "runs").glob(f"*-{tag}")
        digests.append(last_digest(run))

    assert digests[0] == digests[1]


@pytest.mark.row("B23")
def test_a_misspelt_device_is_told_which_was_meant(assay) -> None:
    ran = assay("run", "toy.toml", "--device", "cude")

    assert ran.returncode == 2
    assert "there is no device 'cude'" in ran.stderr and "did you mean `cuda`?" in ran.stderr
