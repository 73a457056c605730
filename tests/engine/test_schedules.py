"""Learning rates in closed form: a function of the step, whatever happened to the optimizer meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler

from assay.core.errors import InputError
from assay.engine.backward import Backward
from assay.engine.engine import Engine
from assay.engine.process import Supervised
from assay.engine.schedules import Constant, LearningRate, Schedule, WarmupCosine, WarmupLinear

DECAYING = [WarmupCosine, WarmupLinear]
shares = st.floats(0.0, 1.0)


def sgd(lr: float = 1.0, *, other: float | None = None) -> torch.optim.SGD:
    """An optimizer of one parameter, or of two with a rate each."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))]}]
    if other is not None:
        groups.append({"params": [nn.Parameter(torch.zeros(1))], "lr": other})  # type: ignore[dict-item]
    return torch.optim.SGD(groups, lr=lr)


def rates_of_torch(scheduler: LRScheduler, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return [float(rate) for rate in rates]


# ------------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_a_cosine_is_that_of_torch(final: float) -> None:
    expected = rates_of_torch(CosineAnnealingLR(sgd(), T_max=40, eta_min=final), 41)

    schedule = WarmupCosine(final=final)

    assert [schedule.factor(step, 40) for step in range(41)] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_a_line_is_that_of_torch(final: float) -> None:
    expected = rates_of_torch(LinearLR(sgd(), start_factor=1.0, end_factor=final, total_iters=40), 45)

    schedule = WarmupLinear(final=final)

    assert [schedule.factor(step, 40) for step in range(45)] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", DECAYING)
@pytest.mark.parametrize("start", [0.001, 0.5])
def test_warming_up_is_that_of_torch(kind: type[WarmupCosine | WarmupLinear], start: float) -> None:
    expected = rates_of_torch(LinearLR(sgd(), start_factor=start, end_factor=1.0, total_iters=10), 11)

    schedule = kind(warmup_steps=10, start=start)

    assert [schedule.factor(step, 100) for step in range(11)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", DECAYING)
@given(st.integers(1, 1000), st.integers(0, 1200), shares, shares)
def test_a_schedule_rises_from_its_start_to_one_and_falls_to_its_end(
    kind: type[WarmupCosine | WarmupLinear], total: int, warmup: int, start: float, final: float
) -> None:
    schedule = kind(warmup_steps=warmup, start=start, final=final)
    factors = [schedule.factor(step, total) for step in range(total + 3)]

    assert factors[0] == (start if warmup else 1.0)
    assert factors[:warmup] == sorted(factors[:warmup])
    if warmup < total:
        assert factors[warmup] == 1.0
        assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
        assert factors[total:] == pytest.approx([final] * 3, abs=1e-12)
    assert all(min(start, final) - 1e-12 <= factor <= 1.0 for factor in factors)


def test_half_way_through_the_decay_both_forms_are_half_way_down() -> None:
    for kind in DECAYING:
        assert kind(warmup_steps=20, final=0.2).factor(60, 100) == pytest.approx(0.6)
    assert WarmupLinear(warmup_steps=20).factor(40, 100) == pytest.approx(0.75)
    assert WarmupCosine(warmup_steps=20).factor(40, 100) == pytest.approx((2 + math.sqrt(2)) / 4)


@pytest.mark.row("E32")
def test_a_share_of_the_run_is_warmed_up_rounded_up_to_whole_steps() -> None:
    def warmup(ratio: float, total: int) -> int:
        """The first step at full rate."""
        schedule = WarmupLinear(warmup_ratio=ratio)
        return next(step for step in range(total + 1) if schedule.factor(step, total) == 1.0)

    for percent in range(100):
        for total in (100, 128, 3000):
            assert warmup(percent / 100, total) == math.ceil(Fraction(percent, 100) * total)
    assert warmup(5 / 300, 300 * 469) == 5 * 469


def test_a_constant_rate_needs_to_know_nothing() -> None:
    assert {Constant().factor(step, total) for step in (0, 10**9) for total in (None, 5)} == {1.0}


@pytest.mark.parametrize("kind", DECAYING)
@pytest.mark.parametrize(
    "options",
    [{"warmup_ratio": 1.0}, {"warmup_ratio": -0.1}, {"warmup_steps": -1}, {"warmup_steps": 3, "warmup_ratio": 0.1}],
)
def test_what_is_no_warm_up_is_refused(kind: type[WarmupCosine | WarmupLinear], options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        kind(**options)  # type: ignore[arg-type]


@pytest.mark.row("A59")
def test_the_length_of_the_run_comes_from_the_data_and_a_stream_that_has_none_is_refused() -> None:
    def supervised() -> Supervised:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return Supervised(model, nn.MSELoss(), backward=Backward(optimizer, schedule=WarmupLinear(warmup_steps=2)))

    def stream() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(8):
            yield torch.zeros(1, 1), torch.zeros(1, 1)

    process, rates = supervised(), []
    known = Engine(process, list(stream()))
    known.on("step_begin")(lambda: rates.append(process.backward.rate.current))
    known.run()
    assert rates == pytest.approx([0.001, 0.5005, *(1 - step / 6 for step in range(6))])

    with pytest.raises(InputError, match="WarmupLinear needs to know how long the run is") as caught:
        Engine(supervised(), stream(), epochs=1).run()
    assert "steps" in caught.value.fix


# -------------------------------------------------------------------------------------------------- applied to groups


def test_each_group_has_its_own_rate_times_the_factor() -> None:
    optimizer = sgd(0.1, other=0.01)
    rate = LearningRate(optimizer, WarmupLinear())
    rate.total = 10

    rate.set(4)

    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.06, 0.006])
    assert rate.current == optimizer.param_groups[0]["lr"]


def test_rates_go_on_after_a_state_was_loaded() -> None:
    optimizer = sgd(0.1, other=0.01)
    rate = LearningRate(optimizer, WarmupLinear())
    rate.total = 10
    rate.set(9)

    optimizer.load_state_dict(sgd(0.1, other=0.01).state_dict())
    rate.set(5)

    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.005])
    assert rate.current == pytest.approx(0.05)


def test_the_base_of_a_rate_that_was_scheduled_before_is_what_it_began_with() -> None:
    optimizer = sgd(0.1)
    first = LearningRate(optimizer, WarmupLinear())
    first.total = 10
    first.set(9)

    again = LearningRate(optimizer, WarmupLinear())
    again.total = 10
    again.set(0)

    assert again.current == 0.1


@pytest.mark.parametrize("schedule", [None, Constant()])
def test_without_a_schedule_rates_stay_what_they_are(schedule: Schedule | None) -> None:
    optimizer = sgd(0.1, other=0.01)

    LearningRate(optimizer, schedule).set(100)

    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]
