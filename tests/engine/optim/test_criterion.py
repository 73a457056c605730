"""A loss that is an object with settings and a state of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError
from assay.engine import Engine, Loader, Saver, Supervised, Where
from assay.engine.callbacks.ema import load_to_evaluate
from assay.engine.loop.engine_state import capture_state, restore
from engine.callbacks.test_evaluate import classes
from engine.toys import engine, net, same_bits


class Focal(nn.Module):
    """Focal loss (Lin et al. 2017) whose gamma grows with each batch that it is trained on."""

    alpha: Tensor
    gamma: Tensor

    def __init__(self, alpha: float, gamma: float) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.tensor(alpha))
        self.register_buffer("gamma", torch.tensor(gamma))

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.gamma += 0.125
        right = pred.log_softmax(1).gather(1, target[:, None])[:, 0]
        return -(self.alpha * (1 - right.exp()) ** self.gamma * right).mean()


def training(criterion: Any, **given: Any) -> Engine:
    model = net()
    process = Supervised(model, criterion, torch.optim.SGD(model.parameters(), lr=0.1))
    return engine(process, Loader(classes(20), batch_size=8), **given)


@pytest.mark.row("B25")
@pytest.mark.parametrize("step", [1, 3, 4])
def test_the_state_of_a_loss_is_in_the_checkpoint_and_a_run_goes_on_with_it(
    step: int, tmp_path: Path
) -> None:
    first = training(Focal(alpha=0.25, gamma=2.0), steps=step)
    first.run()
    Saver(tmp_path).save(capture_state(first), Where(step=step))
    whole = training(Focal(alpha=0.25, gamma=2.0), steps=6)
    whole.run()

    parts = Saver(tmp_path).load()
    assert {name: float(value) for name, value in parts["criterion"].items()} == {
        "alpha": 0.25,
        "gamma": 2.0 + step / 8,
    }
    second = training(Focal(alpha=0.0, gamma=0.0), steps=6)
    restore(second, parts)
    second.run()

    assert same_bits(capture_state(second), capture_state(whole))


def test_a_loss_without_state_leaves_no_part(tmp_path: Path) -> None:
    assert "criterion" not in capture_state(training(nn.CrossEntropyLoss()))
    assert "criterion" not in capture_state(training(lambda pred, target: pred.sum()))


def test_an_evaluation_measures_with_the_state_that_the_loss_had(tmp_path: Path) -> None:
    runs = training(Focal(alpha=0.25, gamma=2.0), steps=4)
    runs.run()
    manifest = Saver(tmp_path).save(capture_state(runs), Where(step=4))
    fresh = Supervised(net(seed=1), Focal(alpha=0.0, gamma=0.0))

    load_to_evaluate(fresh, tmp_path / manifest.name)

    assert float(fresh.criterion.gamma) == 2.5
    assert same_bits(fresh.model.state_dict(), runs.process.model.state_dict())


def test_the_state_of_another_loss_is_told(tmp_path: Path) -> None:
    runs = training(Focal(alpha=0.25, gamma=2.0))
    parts = capture_state(runs)

    with pytest.raises(CheckpointError, match="does not fit the criterion"):
        restore(training(nn.CrossEntropyLoss(weight=torch.ones(2))), parts)


def test_weights_alone_are_read_from_a_file_and_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    process = Supervised(net(seed=1), None)
    save_file(net(seed=2).state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing of the kind")

    load_to_evaluate(process, tmp_path / "w.safetensors")

    assert same_bits(process.model.state_dict(), net(seed=2).state_dict())
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_to_evaluate(process, tmp_path / "bad.safetensors")
