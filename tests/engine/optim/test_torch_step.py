"""A step without its entry in a profile is the step of the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.profiler import ProfilerActivity, profile

from assay.engine.optim import torch_step
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.torch_step import take_step

Make = Callable[..., Optimizer]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def weights(trained: nn.Module) -> list[float]:
    return [value for each in trained.parameters() for value in each.flatten().tolist()]


def differentiated(trained: nn.Module) -> nn.Module:
    trained(torch.arange(3.0)).square().sum().backward()
    return trained


class Own(SGD):
    """An optimizer of somebody's own."""

    def step(self, closure: Any = None) -> Any:
        self.taken = getattr(self, "taken", 0) + 1
        return super().step(closure)


@pytest.mark.parametrize("make", [SGD, Adagrad, AdamW, Own])
def test_it_moves_the_weights_as_the_optimizer_does(make: Make) -> None:
    ours, theirs = model(), model()
    one, other = make(ours.parameters(), lr=0.1), make(theirs.parameters(), lr=0.1)

    for _ in range(3):
        differentiated(ours), differentiated(theirs)
        take_step(one)
        one.zero_grad()
        other.step()
        other.zero_grad()

    assert weights(ours) == weights(theirs) != weights(model())
    assert getattr(one, "taken", None) == getattr(other, "taken", None)


def test_a_profile_has_the_entry() -> None:
    optimizer = SGD(differentiated(model()).parameters(), lr=0.1)

    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as made:
        take_step(optimizer)

    assert "Optimizer.step#SGD.step" in {event.key for event in made.key_averages()}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_torch_that_wraps_a_step_in_another_way_takes_it_as_it_is(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries: list[str] = []
    plain = torch.autograd.profiler.record_function
    monkeypatch.setattr(
        torch.autograd.profiler,
        "record_function",
        lambda name: (entries.append(name), plain(name))[1],
    )
    if not is_known:
        monkeypatch.setattr(torch_step, "_AROUND", object())
    trained = differentiated(model())

    take_step(SGD(trained.parameters(), lr=0.1))

    assert entries == ([] if is_known else ["Optimizer.step#SGD.step"])
    assert weights(trained) != weights(model())


def test_gradients_are_dropped_as_the_optimizer_does_it() -> None:
    class Zeros(SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    grads = []
    for make in (SGD, Zeros):
        trained = differentiated(model())
        OptimizerStep(make(trained.parameters(), lr=0.1)).gradients.clear()
        grads.append([parameter.grad for parameter in trained.parameters()])

    assert grads[0] == [None, None]
    assert all(grad is not None and not grad.any() for grad in grads[1])


def test_hooks_are_called() -> None:
    optimizer, called = SGD(differentiated(model()).parameters(), lr=0.1), []

    for add, name in (
        (optimizer.register_step_pre_hook, "before"),
        (optimizer.register_step_post_hook, "after"),
        (register_optimizer_step_pre_hook, "before any"),
        (register_optimizer_step_post_hook, "after any"),
    ):
        handle = add(lambda *_, name=name: called.append(name))
        take_step(optimizer)
        handle.remove()
    take_step(optimizer)

    assert called == ["before", "after", "before any", "after any"]


def test_a_scheduler_sees_that_a_step_was_taken() -> None:
    optimizer = SGD(differentiated(model()).parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1)

    take_step(optimizer)
    scheduler.step()  # torch warns if none was


def test_what_somebody_puts_around_a_step_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    optimizer = SGD(differentiated(model()).parameters(), lr=0.1)
    inner = SGD.step

    @functools.wraps(inner)  # takes over that torch has wrapped it, too
    def around(self: SGD, closure: Any = None) -> Any:
        called.append("around")
        return inner(self, closure)

    monkeypatch.setattr(SGD, "step", around)
    take_step(optimizer)

    assert called == ["around"]


def test_an_optimizer_that_does_not_say_what_its_step_wraps_takes_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(Own, "step", lambda self: taken.append(1))
    optimizer = Own(differentiated(model()).parameters(), lr=0.1)
    monkeypatch.setattr(
        Own, "step", lambda self: taken.append(2)
    )  # in the place of what torch made of the first

    take_step(optimizer)

    assert taken == [2]
