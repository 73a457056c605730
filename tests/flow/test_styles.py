"""Every style from a config trains to the same bits, is saved, resumed, evaluated and tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import assay as library
from assay.formats import run_file
from flow.test_train import last_digest, only_run

pytestmark = pytest.mark.slow

STYLES = """\
from torch import nn

from assay.engine import OptimizerStep, Process

class Processed:
    def __init__(self, model, metrics=None):
        self.model, self.metrics = model, metrics

    def forward_step(self, batch):
        pred = self.model(batch[0])
        loss = nn.functional.cross_entropy(pred, batch[1])
        return loss, {"pred": pred.detach(), "target": batch[1], "loss": loss.detach()}

class Updating(Process):
    def __init__(self, model, optimizer, metrics=None):
        self.model, self.metrics = model, metrics
        self.backward = OptimizerStep(optimizer)  # which knows nothing of clip_norm and the schedule

    forward_step = Processed.forward_step

class Clipping(Updating):
    def __init__(self, model, optimizer):
        super().__init__(model, optimizer)
        self.backward.clip_norm = 0.5

class Task:
    def __init__(self, model, metrics=None):
        self.model, self.metrics = model, metrics

    def train_batch(self, eidx, idx, global_step, batch, params, device):
        return {"loss": nn.functional.cross_entropy(self.model(batch[0]), batch[1])}

class Flags:
    def __init__(self, model, metrics=None):
        self.model, self.metrics = model, metrics

    def forward(self, batch, needs_loss, requires_grad):
        outputs = {"pred": self.model(batch[0]), "target": batch[1]}
        if needs_loss:
            loss = nn.functional.cross_entropy(outputs["pred"], batch[1])
            outputs["loss"] = loss.item()
        if requires_grad:
            self.backward(loss)
        return outputs

def step(batch, model):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def make_step(model):
    return lambda batch: step(batch, model)
"""
WITH_LOSS = """\
from net import Net
from torch import nn

class WithLoss(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = Net(width).layers

    def forward(self, x, label):
        scores = self.layers(x)
        if self.training:
            return {"losses": nn.functional.cross_entropy(scores, label)}
        return {"prediction_scores": scores}
"""
FIELDS = """\
from points import Points

class Fields(Points):
    def __getitem__(self, i):
        x, label = super().__getitem__(i)
        return {"x": x, "label": label}
"""
METRICS = "metrics = { acc = { type = 'assay.engine.Accuracy' } }"
PROCESSES = {
    "forward_step": f"type = 'styles.Processed'\n{METRICS}",
    "own backward": f"type = 'styles.Updating'\n{METRICS}",
    "train_batch": f"type = 'styles.Task'\n{METRICS}",
    "flags": f"type = 'styles.Flags'\n{METRICS}",
    "wrapper": "type = 'assay.engine.ModelWrapper'\ncriterion = { type = 'torch.nn.CrossEntropyLoss' }\n"
    + METRICS,
    "function": "type = 'assay.engine.StepFunction'\n"
    f"step = {{ type = 'styles.step', _partial_ = true, model = '@model' }}\n{METRICS}",
    "factory": "type = 'styles.make_step'",
}


@pytest.fixture
def styled(toy: Path) -> Path:
    """The toy project with its modules of other styles."""
    for name, text in {"styles.py": STYLES, "with_loss.py": WITH_LOSS, "fields.py": FIELDS}.items():
        (toy / name).write_text(text)
    return toy


def write(toy: Path, style: str) -> None:
    text = (toy / "toy.toml").read_text()
    begin, end = text.index("[process]"), text.index("[optimizer]")
    if style == "own_loss":
        process = f"type = 'assay.engine.OwnLoss'\nreduction = 'mean'\ntarget = 'label'\n{METRICS}"
        text = text.replace("net.Net", "with_loss.WithLoss").replace(
            "points.Points", "fields.Fields"
        )
        begin, end = text.index("[process]"), text.index("[optimizer]")
    else:
        process = PROCESSES[style]
    text = f"{text[:begin]}[process]\n{process}\n\n{text[end:]}"
    if style == "factory":
        text = text.replace('best = { metric = "valid/acc", mode = "max" }', "")
    (toy / "toy.toml").write_text(text)


def weights(result: Any) -> dict[str, Any]:
    """The newest weights of a run by their names, and what has just been measured of it."""
    assert result.exception is None, result.exception
    assert result.record_dir is not None
    model = library.load_model(f"{result.id}@latest")
    return {name.replace("net.", ""): value for name, value in model.state_dict().items()}


@pytest.mark.thorough
def test_a_config_of_any_style_trains_the_same_bits(
    styled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(styled)
    config = styled / "toy.toml"
    config.write_text(
        config.read_text().replace("clip_norm = 1.0", "clip_norm = 1.0\naccumulate = 4")
    )
    original = config.read_text()
    reference = library.run("toy.toml")
    expected = weights(reference)

    for style in [*PROCESSES, "own_loss"]:
        config.write_text(original)
        write(styled, style)
        result = library.run("toy.toml")
        found = weights(result)
        assert found.keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in found.items()), style
        assert style == "factory" or result.value["valid/acc"] == reference.value["valid/acc"], (
            style
        )


def test_settings_that_a_process_would_lose_are_refused_before_there_is_a_record(
    styled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(styled)
    text = (styled / "toy.toml").read_text()
    begin, end = text.index("[process]"), text.index("[optimizer]")
    (styled / "toy.toml").write_text(
        f"{text[:begin]}[process]\ntype = 'styles.Clipping'\n\n{text[end:]}"
    )

    result = library.run("toy.toml", check=False)

    assert result.exit_code == 2
    assert (
        "Clipping makes its own OptimizerStep, which knows nothing of clip_norm, [schedule]."
        in str(result.exception)
    )
    assert not (styled / "runs").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("style", ["flags", "train_batch"])
def test_a_run_of_another_style_is_killed_resumed_and_tested(
    assay, styled: Path, style: str
) -> None:
    write(styled, style)
    assert assay("run", "toy.toml").returncode == 0
    expected = last_digest(only_run(styled))
    (styled / "runs").rename(styled / "reference")

    killed = assay("run", "toy.toml", DIE_AT="100")
    resumed = assay("resume", "last")
    tested = assay("test", "last")

    assert killed.returncode == -9, killed.stderr
    assert resumed.returncode == 0, resumed.stderr
    assert tested.returncode == 0 and "test/acc" in tested.stdout, tested.stdout + tested.stderr
    runs = [run for run in (styled / "runs").iterdir() if run_file.read(run).kind == "train"]
    assert [last_digest(run) for run in runs] == [expected]
