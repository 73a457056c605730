"""Every style is the same training: from the same weights and data all end with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from assay.core.ports import MemoryRecorder
from assay.engine import (
    ByHand,
    Engine,
    Loader,
    ModelWrapper,
    OptimizerStep,
    OwnLoss,
    Process,
    StepFunction,
    Supervised,
)
from assay.engine.numerics.seed import STEP, seed_torch, stream_key
from engine.toys import hard_net, points, same_bits, weights_of

Trained = tuple[nn.Module, Engine]
Pair = tuple[Tensor, Tensor]


class Fields:
    """The points, as samples with named fields."""

    def __init__(self) -> None:
        self.points = points(32)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs, labels = self.points[index]
        return {"inputs": inputs, "labels": labels}


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with dropout and running statistics, and its optimizer."""
    model = hard_net()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def engine(process: Any, accumulate: int, data: Any = None) -> Engine:
    """Three epochs of 32 samples in steps of 12: the last window has 8, split as 3, 3 and 2."""
    train = Loader(data or points(32), batch_size=12, shuffle=True, accumulate=accumulate)
    return Engine(process, train, epochs=3, seed=5, recorder=MemoryRecorder())


def supervised(accumulate: int) -> Trained:
    model, optimizer = parts()
    runs = engine(Supervised(model, nn.MSELoss(), optimizer), accumulate)
    runs.run()
    return model, runs


def process(accumulate: int) -> Trained:
    class Own(Process):
        def __init__(self) -> None:
            self.model, optimizer = parts()
            self.backward = OptimizerStep(optimizer)

        def forward_step(self, batch: Pair) -> Any:
            return mse_loss(self.model(batch[0]), batch[1]), None

    own = Own()
    runs = engine(own, accumulate)
    runs.run()
    return own.model, runs


def own_loss(accumulate: int) -> Trained:
    class Model(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            return {"losses": mse_loss(self.net(inputs), labels)}

    net, optimizer = parts()
    runs = engine(OwnLoss(Model(net), optimizer, reduction="mean"), accumulate, Fields())
    runs.run()
    return net, runs


def train_batch(accumulate: int) -> Trained:
    class Task:
        def __init__(self) -> None:
            self.model, self.optim = parts()

        def train_batch(
            self, eidx: int, idx: int, global_step: int, batch: Pair, params: Any, device: Any
        ) -> Any:
            loss = mse_loss(self.model(batch[0]), batch[1])
            if accumulate > 1:
                self.backward(loss)  # type: ignore[attr-defined]  # what the engine has put there
            else:
                loss.backward()  # type: ignore[no-untyped-call]
                self.optim.step()
                self.optim.zero_grad()
            return {"loss": loss}

    task = Task()
    runs = engine(task, accumulate)
    runs.run()
    return task.model, runs


def flags(accumulate: int) -> Trained:
    model, optimizer = parts()
    runs = engine(ModelWrapper(model, nn.MSELoss(), optimizer), accumulate)
    runs.run()
    return model, runs


def function(accumulate: int) -> Trained:
    model, optimizer = parts()

    def step(batch: Pair) -> Tensor:
        return mse_loss(model(batch[0]), batch[1])

    runs = engine(StepFunction(step, model, optimizer), accumulate)
    runs.run()
    return model, runs


def whole_function(accumulate: int) -> Trained:
    """Train by a function that updates the weights itself if a step is one batch.

    Otherwise the engine updates them.
    """
    model, optimizer = parts()

    def step(batch: Pair) -> Tensor:
        loss = mse_loss(model(batch[0]), batch[1])
        if accumulate == 1:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return loss

    runs = engine(StepFunction(step, model, optimizer), accumulate)
    runs.run()
    return model, runs


def by_hand(accumulate: int) -> Trained:
    model, optimizer = parts()
    runs = engine(ByHand(model, optimizer), accumulate)
    for inputs, target in runs:
        loss = mse_loss(model(inputs), target)
        if accumulate == 1:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            runs.log("loss", loss)
        else:
            runs.backward(loss)
    return model, runs


def any_process_by_hand(accumulate: int) -> Trained:
    model, optimizer = parts()
    runs = engine(Supervised(model, nn.MSELoss(), optimizer), accumulate)
    for inputs, target in runs:
        runs.backward(mse_loss(model(inputs), target))
    return model, runs


STYLES = [
    process,
    own_loss,
    train_batch,
    flags,
    function,
    whole_function,
    by_hand,
    any_process_by_hand,
]


@pytest.mark.row("C56", "E17", "B22")
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
def test_every_style_trains_the_same_bits(style: Callable[[int], Trained], accumulate: int) -> None:
    expected, reference = supervised(accumulate)

    model, runs = style(accumulate)

    assert same_bits(weights_of(model), weights_of(expected))
    assert runs.state.state_dict() == reference.state.state_dict()
    assert isinstance(runs.recorder, MemoryRecorder) and isinstance(
        reference.recorder, MemoryRecorder
    )
    assert runs.recorder.curve("train/loss") == reference.recorder.curve("train/loss")
    assert runs.recorder.curve("train/lr") == reference.recorder.curve("train/lr")


def test_the_reference_is_a_loop_without_assay() -> None:
    model, optimizer = parts()
    train = Loader(points(32), batch_size=12, shuffle=True, seed=5)
    for step in range(9):
        (window, *_) = train.windows(*divmod(step, 3))
        seed_torch(stream_key(5, STEP, step, 0))
        loss = mse_loss(model(window.batches[0][0]), window.batches[0][1])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    assert same_bits(weights_of(model), weights_of(supervised(1)[0]))
