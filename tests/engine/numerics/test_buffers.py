"""What a step leaves in the buffers of a model can be taken back, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from assay.engine import Loader, NonFiniteError, OptimizerStep, Supervised
from assay.engine.numerics.buffers import Buffers
from engine.toys import engine, hard_net, kept, points, same_bits, supervised, weights_of


def test_running_statistics_are_those_of_before() -> None:
    model = hard_net()
    model(torch.randn(8, 4))
    buffers, before = Buffers(model), weights_of(model)

    model(torch.randn(8, 4))
    assert not same_bits(weights_of(model), before)
    buffers.put_back()
    assert same_bits(weights_of(model), before)

    model(torch.randn(8, 4))
    buffers.keep()
    later = weights_of(model)
    model(torch.randn(8, 4))
    buffers.put_back()
    assert same_bits(weights_of(model), later)


class Replaces(nn.Module):
    """Counts by putting a new tensor in the place of the old one; later of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("table", torch.arange(1000.0))
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x.detach().mean().reshape(1)])
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_buffer_that_was_replaced_is_the_old_one_again() -> None:
    model = Replaces()
    buffers = Buffers(model)
    model(torch.ones(2, 4))
    buffers.keep()
    expected = model.seen

    model(torch.ones(2, 4))
    buffers.put_back()

    assert model.seen is expected and model.seen.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_step_that_is_left_out_leaves_the_running_statistics_alone(policy: str) -> None:
    process = supervised(hard_net())
    process.backward.non_finite = policy  # type: ignore[assignment]
    runs = engine(process)
    states = []

    @runs.on("step_end")
    def spoil(engine) -> None:  # type: ignore[no-untyped-def]
        states.append(weights_of(process.model))
        if engine.state.step == 3:
            process.criterion = lambda pred, target: pred.sum() * math.nan  # type: ignore[assignment]

    if policy == "stop":
        with pytest.raises(NonFiniteError, match="at step 4"):
            runs.run()
        assert runs.state.step == 3
        states.append(kept(runs)["model"])
    else:
        assert runs.run().step == 6

    assert all(same_bits(each, states[2]) for each in states[3:]) and states[3:]


class Centre(nn.Module):
    """Criterion with a state: the running mean of the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = (pred - target).square().mean()
        self.mean.lerp_(loss.detach(), 0.3)
        return loss * (1 + self.mean)


def test_a_step_that_is_left_out_leaves_the_state_of_the_criterion_alone() -> None:
    data = points(24)
    data.tensors[1][9] = math.nan
    model, criterion = hard_net(), Centre()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    backward = OptimizerStep(optimizer, non_finite="skip")

    runs = engine(Supervised(model, criterion, backward=backward), Loader(data, batch_size=8))

    assert runs.run().step == 6
    assert runs.state.left_out == 2 and 0 < float(criterion.mean) < math.inf
