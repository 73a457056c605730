"""Training with a loss scale, against torch's own."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Save, Saver
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.precision import in_precision
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep
from assay.engine.optim.schedules import WarmupLinear
from engine.toys import engine, loader, net, supervised


def one(value: float = 1.0) -> tuple[nn.Parameter, torch.optim.SGD]:
    weight = nn.Parameter(torch.full((3,), value))
    return weight, torch.optim.SGD([weight], lr=0.1, momentum=0.9)


def test_scale_and_weights_are_those_of_torch_whatever_overflows() -> None:
    draw = random.Random(0)
    factors = [math.inf if draw.random() < 0.1 else draw.uniform(0.1, 2.0) for _ in range(200)]
    weight, optimizer = one()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=7)
    mine, own = one()
    backward = ScaledOptimizerStep(own, scale=2.0**40, growth_interval=7)

    for step, factor in enumerate(factors):
        scaler.scale((weight * factor).square().sum()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        backward.begin(None)
        backward((mine * factor).square().sum())
        updated = backward.update(step)

        assert updated == math.isfinite(factor)
        assert backward.scale == scaler.get_scale()
        assert torch.equal(mine, weight)
    assert backward.overflows == factors.count(math.inf) > 10


@pytest.mark.parametrize("pairs", [False, True])
def test_where_nothing_overflows_a_scale_changes_nothing(pairs: bool) -> None:
    def trained(backward: OptimizerStep, weight: nn.Parameter) -> list[float]:
        seen = []
        for step in range(5):
            backward.begin([3, 1])
            for size in (3, 1):
                loss = weight.square().sum() + step + size
                backward((loss, 4.0 * size) if pairs else loss)
            assert backward.update(step)
            seen += [backward.loss, backward.grad_norm or 0.0, *weight.tolist()]
        return seen

    (a, plain), (b, other) = one(), one()

    assert trained(ScaledOptimizerStep(other, clip_norm=0.5), b) == trained(
        OptimizerStep(plain, clip_norm=0.5), a
    )


def test_gradients_that_would_vanish_in_half_precision_do_not() -> None:
    def gradient(make: Any) -> float:
        weight = nn.Parameter(torch.zeros(1))
        backward = make(torch.optim.SGD([weight], lr=1.0))
        backward.begin(None)
        backward((weight.half() * 1e-4).float().sum() * 1e-4)  # what goes back through half is 1e-8
        backward.update(0)
        return -weight.item()

    assert gradient(OptimizerStep) == 0.0
    assert gradient(ScaledOptimizerStep) == pytest.approx(1e-8, rel=0.1)


def test_a_scale_that_falls_below_one_ends_the_run_with_the_weights_as_they_were() -> None:
    weight, optimizer = one()
    backward = ScaledOptimizerStep(optimizer, scale=2.0, non_finite="skip")

    backward.begin(None)
    backward((weight * math.inf).sum())
    assert not backward.update(0)
    backward.begin(None)
    backward((weight * math.inf).sum())
    with pytest.raises(NonFiniteError, match="overflow at step 2"):
        backward.update(1)

    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert (backward.overflows, backward.skipped) == (2, 0)


def test_a_rate_goes_on_when_an_update_is_left_out() -> None:
    weight, optimizer = one()
    backward = ScaledOptimizerStep(optimizer, schedule=WarmupLinear())
    backward.rate.total = 10

    backward.begin(None)
    backward((weight * math.inf).sum())
    backward.update(0)

    assert backward.rate.read()[""] == pytest.approx(0.09)


@pytest.mark.row("E34")
def test_fp16_trains_on_the_cpu_and_its_scale_is_in_the_checkpoint() -> None:
    def made() -> Any:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        process = supervised(
            model, backward=ScaledOptimizerStep(optimizer, scale=2.0**6, growth_interval=3)
        )
        process.forward_step = in_precision("fp16", torch.device("cpu"), process.forward_step)  # type: ignore[method-assign]
        return engine(process, steps=8)

    first = made()
    assert math.isfinite(first.run().loss)
    scale = first.process.backward.scale
    assert scale == 2.0**8

    again = made()
    restore(again, capture_state(first))
    assert again.process.backward.state_dict() == {"scale": scale, "since": 2, "overflows": 0}


def test_sparse_gradients_are_scaled_back_too() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    nn.init.zeros_(table.weight)
    backward = ScaledOptimizerStep(torch.optim.SGD(table.parameters(), lr=1.0))

    backward.begin(None)
    backward(table(torch.tensor([1, 1])).sum())
    backward.update(0)

    assert table.weight.tolist() == [[0.0, 0.0], [-2.0, -2.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("wrong", [{"scale": 0.5}, {"growth_factor": 1.0}, {"backoff_factor": 1.5}])
def test_what_is_no_scale_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="loss scale"):
        ScaledOptimizerStep(one()[1], **wrong)  # type: ignore[arg-type]


def test_what_is_no_loss_is_told_as_ever() -> None:
    backward = ScaledOptimizerStep(one()[1])
    backward.begin(None)

    with pytest.raises(InputError, match="The loss is a float"):
        backward(0.5)  # type: ignore[arg-type]


def overflowing(folder: Path, **given: Any) -> Engine:
    """Run whose scale overflows until it has fallen twelve times."""
    model = net()
    backward = ScaledOptimizerStep(
        torch.optim.SGD(model.parameters(), lr=0.01), scale=2.0**127, backoff_factor=2.0**-8
    )
    process = supervised(model, backward=backward)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (math.inf if backward.scale > 2.0**31 else 1.0)

    model[0].weight.register_hook(spoil)
    return engine(process, loader(8), recorder=MemoryRecorder(), **given)


def test_updates_that_the_scale_left_out_are_counted_and_told(tmp_path: Path) -> None:
    first = overflowing(tmp_path, steps=8)
    first.bus.extend(Save(Saver(tmp_path)).handlers())
    first.run()
    second = overflowing(tmp_path, steps=15)
    second.resume(Saver(tmp_path))
    state = second.run()

    assert first.state.describe_left_out() == "8 of 8 updates were left out"
    assert state.describe_left_out() == "12 of 15 updates were left out"
    (warned,) = [fact for fact in second.recorder.facts if isinstance(fact, Warned)]  # type: ignore[attr-defined]
    assert (warned.step, warned.message) == (
        15,
        "12 of 15 updates were left out: loss or gradients were not finite.",
    )


def test_a_run_that_left_no_update_out_says_nothing_of_it() -> None:
    runs = engine(recorder=MemoryRecorder())

    assert runs.run().describe_left_out() == ""
    assert not runs.recorder.facts  # type: ignore[attr-defined]
