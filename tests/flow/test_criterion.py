"""A criterion of a config whose constructor and call both have arguments by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import assay as api
from assay.cli.main import commands
from assay.core.errors import InputError
from assay.engine import Saver

CODE = """\
import torch
from torch import nn


class Rows:
    def __init__(self, size=24, weight="weight"):
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(size, 4, generator=draw)
        self.weight = weight

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        label = (x.sum() > 0).long()
        return {"image": x, "label": label, self.weight: torch.tensor(1.0 + index)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return {"logits": self.layer(x)}


class Focal(nn.Module):
    def __init__(self, alpha, gamma):
        super().__init__()
        self.register_buffer("alpha", torch.tensor(alpha))
        self.gamma = nn.Parameter(torch.tensor(gamma), requires_grad=False)

    def forward(self, label, logits, weight):
        right = logits.log_softmax(1).gather(1, label[:, None])[:, 0]
        each = -self.alpha * (1 - right.exp()) ** self.gamma * right
        return (each * weight).sum(), weight.sum()
"""

CONFIG = """\
seed = 0
model = { type = "parts.Net" }

[data.train]
source = { type = "parts.Rows" }
batch_size = 8

[process]
type = "assay.engine.Supervised"
input = "image"
target = "label"
criterion = { type = "parts.Focal", alpha = 0.25, gamma = 2.0 }

[optimizer]
type = "torch.optim.SGD"
lr = 0.1

[train]
steps = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "focal.toml").write_text(CONFIG)
    (tmp_path / "parts.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said_of(*arguments: str) -> Result:
    return CliRunner().invoke(commands, list(arguments))


def losses_of(*overrides: str) -> tuple[Any, dict[str, Any]]:
    result = api.run("focal.toml", overrides=list(overrides))
    record = result.run
    kept = Saver(record.path / "checkpoints").load()
    return record.metric("train/loss").values.tolist(), kept


@pytest.mark.row("B25")
def test_a_config_gives_the_settings_of_a_loss_and_its_arguments_come_by_name(here: Path) -> None:
    losses, kept = losses_of()
    in_parts, _ = losses_of("data.train.micro_batch_size=2")

    assert {name: float(value) for name, value in kept["criterion"].items()} == {
        "alpha": 0.25,
        "gamma": 2.0,
    }
    assert in_parts == pytest.approx(losses, rel=1e-5)
    assert losses_of("process.criterion.gamma=0.5")[1]["criterion"]["gamma"] == 0.5


@pytest.mark.row("B25")
def test_an_argument_that_a_loss_does_not_have_is_told_by_the_check(here: Path) -> None:
    config = CONFIG.replace(
        "[optimizer]", '[process.criterion_args]\nwieght = "weight"\n\n[optimizer]'
    )
    (here / "focal.toml").write_text(config)

    said = said_of("check", "focal.toml")

    assert "focal.toml:15:1" in said.output
    assert "`Focal` is not called with an argument `wieght`" in said.output
    assert "did you mean `weight`?" in said.output


OWN_LOSS = """\


class Own(Net):
    def forward(self, inputs, label, weight):
        logits = self.layer(inputs)
        return {"loss": nn.functional.cross_entropy(logits, label), "prediction_scores": logits}
"""


@pytest.mark.slow
@pytest.mark.row("E18")
def test_fields_that_are_no_arguments_of_a_model_are_told_by_a_rehearsal(here: Path) -> None:
    (here / "parts.py").write_text(CODE + OWN_LOSS)
    section = CONFIG.partition("[process]\n")[2].partition("\n[optimizer]")[0]
    config = CONFIG.replace(section, 'type = "assay.engine.OwnLoss"\n')
    (here / "own.toml").write_text(config.replace("parts.Net", "parts.Own"))

    said = said_of("check", "own.toml", "--rehearse")

    assert [line.strip() for line in said.output.splitlines()[1:4]] == [
        "error  A batch does not fit the model: missing a required argument: 'inputs'.",
        "the batch has  (image, label, weight)",
        "Own.forward takes  (inputs, label, weight)",
    ]


@pytest.mark.slow
@pytest.mark.row("B25")
def test_a_field_that_the_data_do_not_have_is_told_by_a_rehearsal_and_by_the_first_step(
    here: Path,
) -> None:
    misnamed = "data.train.source.weight=wieght"
    said = said_of("check", "focal.toml", misnamed, "--rehearse")

    assert "Focal.forward needs `weight`: the batch has image, label, wieght" in said.output
    assert "did you mean `wieght`?" in said.output
    with pytest.raises(InputError, match=r"Focal\.forward needs `weight`"):
        losses_of(misnamed)
    fixed = 'process.criterion_args={ weight = "wieght" }'
    assert len(losses_of(misnamed, fixed)[0]) == 3
