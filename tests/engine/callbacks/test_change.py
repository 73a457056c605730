"""Changes at a step: they take effect there, are reported, and hold in a run resumed later."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from assay.core.errors import InputError
from assay.core.facts import Changed
from assay.core.ports import MemoryRecorder
from assay.engine import (
    Engine,
    OptimizerStep,
    ResetOptimizer,
    Save,
    Saver,
    SetRequiresGrad,
    SetValue,
    Supervised,
    WarmupCosine,
)
from assay.engine.checkpoint.folder import load_parts
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import engine, hard_net, net, same_bits


def changed(
    *changes: Any, folder: Path | None = None, schedule: Any = None
) -> tuple[Engine, MemoryRecorder]:
    """Six steps with AdamW, saved after each when there is a folder."""
    model, recorder = hard_net(), MemoryRecorder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    process = Supervised(
        model, torch.nn.MSELoss(), backward=OptimizerStep(optimizer, schedule=schedule)
    )
    runs = engine(process, recorder=recorder)
    if folder is not None:
        runs.bus.extend(Save(Saver(folder, keep=9), every="1 step").handlers())
    for change in changes:
        runs.bus.extend(change.handlers())
    return runs, recorder


def weights_by_step(runs: Engine, name: str) -> list[Tensor]:
    weight = dict(runs.process.model.named_parameters())[name]
    seen = [weight.detach().clone()]
    runs.on("step_end")(lambda: seen.append(weight.detach().clone()))
    return seen


def told(recorder: MemoryRecorder) -> list[Changed]:
    return [fact for fact in recorder.facts if isinstance(fact, Changed)]


@pytest.mark.row("A61")
def test_what_is_frozen_at_a_step_stays_as_it_is_from_there_on() -> None:
    runs, recorder = changed(SetRequiresGrad(2, "0.*"), SetRequiresGrad(4, "0.weight", value=True))
    weight, bias = weights_by_step(runs, "0.weight"), weights_by_step(runs, "0.bias")
    other = weights_by_step(runs, "4.weight")

    runs.run()

    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(weight)]
    assert moved == [True, True, False, False, True, True]
    assert [not torch.equal(a, b) for a, b in itertools.pairwise(bias)] == [True, True] + [
        False
    ] * 4
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(other))
    assert told(recorder) == [
        Changed(what="requires_grad of 0.* (2 parameters)", step=2, before="true", after="false"),
        Changed(
            what="requires_grad of 0.weight (1 parameter)", step=4, before="false", after="true"
        ),
    ]


def test_what_is_frozen_does_not_decay_where_gradients_stay_as_zeros() -> None:
    class Keeps(torch.optim.AdamW):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    model = net()
    runs = engine(
        Supervised(model, torch.nn.MSELoss(), Keeps(model.parameters(), lr=0.1, weight_decay=0.5))
    )
    runs.bus.extend(SetRequiresGrad(2, "0.*").handlers())
    seen = weights_by_step(runs, "0.weight")

    runs.run()

    assert torch.equal(seen[2], seen[6]) and not torch.equal(seen[1], seen[2])


CHANGES: dict[str, Any] = {
    "freeze": lambda: [SetRequiresGrad(3, ["0.*", "1.*"])],
    "freeze and free": lambda: [
        SetRequiresGrad(4, "*.bias", value=True),
        SetRequiresGrad(2, ["0.*", "*.bias"]),
    ],
    "rate": lambda: [SetValue(4, "optimizer.lr", 0.5), SetValue(2, "optimizer.lr", 0.1)],
    "decay": lambda: [SetValue(3, "optimizer.weight_decay", 0.9)],
    "attribute": lambda: [SetValue(3, "model.3.p", 0.9)],
    "clip": lambda: [SetValue(3, "backward.clip_norm", 0.01)],
    "reset": lambda: [ResetOptimizer(3)],
}


@pytest.mark.thorough
@pytest.mark.row("A61")
@pytest.mark.parametrize("schedule", [None, WarmupCosine(warmup_steps=2)])
@pytest.mark.parametrize("name", CHANGES)
def test_a_run_that_goes_on_before_or_after_a_change_ends_with_the_same_bits(
    name: str, schedule: Any, tmp_path: Path
) -> None:
    alone, _ = changed(schedule=schedule)
    alone.run()
    whole, recorder = changed(*CHANGES[name](), folder=tmp_path, schedule=schedule)
    whole.run()
    assert not same_bits(capture_state(whole)["model"], capture_state(alone)["model"])

    for step in range(1, 6):
        resumed, again = changed(*CHANGES[name](), schedule=schedule)
        restore(resumed, load_parts(tmp_path / f"step-{step:09d}"))
        resumed.run()

        assert same_bits(capture_state(resumed), capture_state(whole)), step
        assert told(again) == [fact for fact in told(recorder) if fact.step >= step]


def test_a_new_rate_is_what_the_schedule_multiplies() -> None:
    schedule = WarmupCosine(warmup_steps=2)
    plain, recorder = changed(schedule=schedule)
    faster, other = changed(SetValue(3, "optimizer.lr", 0.1), schedule=schedule)

    plain.run(), faster.run()

    before, after = recorder.curve("train/lr"), other.curve("train/lr")
    assert after[:3] == before[:3]
    for (_, rate), (_, was) in zip(after[3:], before[3:], strict=True):
        assert rate == pytest.approx(10 * was)
    assert told(other) == [
        Changed(what="optimizer.lr", step=3, before=told(other)[0].before, after="0.1")
    ]


@pytest.mark.parametrize("cycles", [False, True])
def test_what_a_scheduler_of_torch_sets_at_every_step_is_refused_and_all_else_stays(
    cycles: bool,
) -> None:
    def one_cycle(*changes: Any) -> tuple[Engine, torch.optim.Optimizer]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = OneCycleLR(optimizer, 0.1, total_steps=6, cycle_momentum=cycles)
        backward = OptimizerStep(optimizer, schedule=schedule)
        runs = engine(Supervised(model, torch.nn.MSELoss(), backward=backward))
        for change in changes:
            runs.bus.extend(change.handlers())
        return runs, optimizer

    refused = ("lr", "momentum") if cycles else ("lr",)
    for name in refused:
        with pytest.raises(InputError, match=f"'optimizer.{name}': OneCycleLR sets it at every"):
            one_cycle(SetValue(3, f"optimizer.{name}", 0.5))[0].run()

    name, value = ("dampening", 0.25) if cycles else ("momentum", 0.3)
    runs, optimizer = one_cycle(SetValue(3, f"optimizer.{name}", value))
    runs.run()
    assert optimizer.param_groups[0][name] == value


class Decay(torch.optim.lr_scheduler.LRScheduler):
    """Scheduler of the user's, which multiplies another setting than the rate."""

    def get_lr(self) -> list[Any]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 0.5
        return [group["lr"] for group in self.optimizer.param_groups]


@pytest.mark.parametrize("is_inside", [False, True])
def test_any_setting_of_an_optimizer_with_a_scheduler_of_the_users_is_refused(
    is_inside: bool,
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    schedule: Any = Decay(optimizer)
    if is_inside:
        schedule = torch.optim.lr_scheduler.ChainedScheduler([schedule], optimizer)
    backward = OptimizerStep(optimizer, schedule=schedule)
    runs = engine(Supervised(model, torch.nn.MSELoss(), backward=backward))
    runs.bus.extend(SetValue(3, "optimizer.weight_decay", 0.4).handlers())

    with pytest.raises(InputError, match=r"SetValue cannot set 'optimizer\.weight_decay'"):
        runs.run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (SetRequiresGrad(50, "encoder.*"), "no parameter of the model is called 'encoder"),
        (SetRequiresGrad(50, "0.weigth"), "did you mean `0.weight`"),
        (SetValue(50, "optimizer.lrr", 1.0), "did you mean `lr`"),
        (SetValue(50, "optimizer.params", 1.0), "no setting 'params'"),
        (SetValue(50, "optimiser.lr", 1.0), "did you mean `optimizer`"),
        (SetValue(50, "model", 1.0), "cannot set 'model'"),
        (SetValue(50, "model.3.pp", 1.0), "a Dropout has no 'pp'"),
        (SetValue(50, "process.nothing.p", 1.0), "has no 'nothing'"),
        (SetValue(50, "model.forward", "x"), "cannot set 'model.forward', which is a method"),
        (SetValue(50, "model.__class__.forward", "x"), "'__class__' is private"),
        (SetValue(50, "process.model", "x"), "cannot set 'process.model'"),
    ],
)
def test_what_cannot_be_done_later_is_told_before_the_first_step(change: Any, message: str) -> None:
    runs, _ = changed(change)

    with pytest.raises(InputError, match=message):
        runs.run()
    assert runs.state.step == 0


def test_what_the_optimizer_does_not_know_cannot_be_freed() -> None:
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    runs = engine(Supervised(model, torch.nn.MSELoss(), optimizer))
    runs.bus.extend(SetRequiresGrad(1, "0.*", value=True).handlers())

    with pytest.raises(InputError, match=r"to free 0\.weight, which the optimizer does not know"):
        runs.run()


def test_a_config_can_set_values_and_put_no_function_in_the_place_of_a_method() -> None:
    with pytest.raises(InputError, match=r"SetValue cannot set 'model.forward' to a partial"):
        SetValue(1, "model.forward", functools.partial(print, "called"))


def test_a_step_before_the_first_is_refused() -> None:
    with pytest.raises(InputError, match="step is -1"):
        ResetOptimizer(-1)
