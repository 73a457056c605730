"""Several losses of one optimizer, and several optimizers in one step."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError, InputError
from assay.core.ports import MemoryRecorder
from assay.engine import (
    Loader,
    MultiOptimizerStep,
    NonFiniteError,
    Norms,
    OptimizerStep,
    Process,
    ScaledOptimizerStep,
    SetValue,
    WarmupCosine,
)
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.loop.styles.own_updates import OwnUpdates
from assay.engine.numerics.nan_debug import locate_backward_errors
from engine.toys import engine, kept, net, points, same_bits, weights_of

F64 = torch.float64


class Named(Process):
    """A regression with three losses by name; `pairs` names those that are sums with a weight."""

    def __init__(
        self, model: nn.Module, backward: OptimizerStep, pairs: tuple[str, ...] = ()
    ) -> None:
        self.model = model
        self.backward = backward
        self.pairs = pairs

    def forward_step(self, batch: Any) -> Any:
        inputs, targets = batch
        pred = self.model(inputs)
        kept = (inputs[:, 0] > -1).to(
            pred.dtype
        )  # a weight that differs from micro-batch to micro-batch
        near, far, small = (pred - targets).square(), (pred - targets).abs(), pred.square()
        terms = {
            "near": (near.mean(1), kept),
            "far": (far.mean(1), None),
            "small": (small.mean(1), 2 * kept + 1),
        }
        losses: dict[str, Any] = {}
        for name, (each, weight) in terms.items():
            if name in self.pairs and weight is not None:
                losses[name] = ((each * weight).sum(), weight.sum())
            else:
                losses[name] = each.mean()
        return losses, {}


def trained(
    accumulate: int, *, pairs: tuple[str, ...] = (), **given: Any
) -> tuple[dict[str, Any], MemoryRecorder]:
    model, recorder = net(dtype=F64), MemoryRecorder()
    weights = {"far": 0.5, "small": 0.01}
    backward = OptimizerStep(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), weights=weights, **given
    )
    data = Loader(points(31, dtype=F64), batch_size=12, accumulate=accumulate)
    engine(Named(model, backward, pairs), data, recorder=recorder).run()
    return weights_of(model), recorder


@pytest.mark.row("A52", "F02")
@pytest.mark.parametrize("accumulate", [2, 3, 12])
@pytest.mark.parametrize("pairs", [(), ("near",), ("near", "small")])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_several_losses_of_a_split_step_give_what_the_whole_step_gives(
    accumulate: int, pairs: tuple[str, ...], clip: float | None
) -> None:
    (split, losses), (whole, expected) = (
        trained(each, pairs=pairs, clip_norm=clip) for each in (accumulate, 1)
    )

    assert all(torch.allclose(split[name], whole[name], rtol=0, atol=1e-12) for name in whole)
    for name in ("train/loss", "train/loss/near", "train/loss/small"):
        assert [value for _, value in losses.curve(name)] == pytest.approx(
            [value for _, value in expected.curve(name)], rel=1e-10
        )


@pytest.mark.row("A54")
def test_each_loss_is_recorded_and_so_is_their_weighted_sum() -> None:
    _, recorder = trained(1)

    curves = {name: recorder.curve(f"train/loss/{name}") for name in ("near", "far", "small")}
    for (step, whole), *parts in zip(recorder.curve("train/loss"), *curves.values(), strict=True):
        near, far, small = (value for _, value in parts)
        assert whole == pytest.approx(near + 0.5 * far + 0.01 * small, rel=1e-12), step


def test_several_losses_are_the_gradient_of_their_weighted_sum() -> None:
    weights, _ = trained(1)
    model = net(dtype=F64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        for batch in Loader(points(31, dtype=F64), batch_size=12):
            losses, _ = Named(model, OptimizerStep(optimizer)).forward_step(batch)
            (losses["near"] + 0.5 * losses["far"] + 0.01 * losses["small"]).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert all(
        torch.allclose(weights[name], each, rtol=0, atol=1e-12)
        for name, each in weights_of(model).items()
    )


class Broken(torch.autograd.Function):
    """Cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError("this has no slope")


def two_losses(second: Any) -> OptimizerStep:
    model = net()
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1))
    pred = model(torch.ones(2, 4))
    backward.begin(None)
    backward({"first": pred.square().mean(), "second": second(pred)})
    return backward


@pytest.mark.row("A53")
@pytest.mark.parametrize(
    ("second", "what"),
    [
        (lambda pred: pred.sum().item(), "The loss 'second' is a float"),
        (lambda pred: pred.sum(1), "The loss 'second' has the shape"),
        (lambda pred: pred.sum().detach(), "The loss 'second' has no gradient"),
        (lambda pred: None, "The loss 'second' is a NoneType"),
    ],
)
def test_of_two_losses_the_broken_one_is_named(second: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        two_losses(second)


@pytest.mark.row("A53")
@pytest.mark.filterwarnings("ignore:Error detected in BrokenBackward")
def test_debugging_names_the_loss_that_fails_in_its_backward_pass() -> None:
    with pytest.raises(RuntimeError, match="no slope") as plain:
        two_losses(lambda pred: Broken.apply(pred).mean())  # type: ignore[no-untyped-call]
    with locate_backward_errors(), pytest.raises(RuntimeError, match="no slope") as told:
        two_losses(lambda pred: Broken.apply(pred).mean())  # type: ignore[no-untyped-call]

    assert plain.value.__notes__ == [
        "in the backward pass of the losses first, second; --debug says of which"
    ]
    assert "in the backward pass of the loss 'second'" in told.value.__notes__


@pytest.mark.row("A53")
@pytest.mark.parametrize("pairs", [(), ("near", "small")])
def test_debugging_changes_no_bit(pairs: tuple[str, ...]) -> None:
    with locate_backward_errors():
        looked_at, _ = trained(3, pairs=pairs)

    assert same_bits(looked_at, trained(3, pairs=pairs)[0])


def test_a_weight_for_a_loss_that_is_not_there_is_an_error() -> None:
    model = net()
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1), weights={"frist": 2.0})
    backward.begin(None)

    with pytest.raises(InputError, match="the loss 'frist'") as caught:
        backward({"first": model(torch.ones(2, 4)).mean()})

    assert caught.value.fix == "did you mean `first`?"


def test_a_loss_with_weight_zero_is_recorded_and_teaches_nothing() -> None:
    model = net()
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1), weights={"shown": 0.0})
    pred = model(torch.ones(2, 4))
    backward.begin(None)
    backward({"first": pred.mean(), "shown": (pred.detach().abs() * math.inf).sum()})

    assert backward.update(0)
    assert math.isinf(backward.points()["train/loss/shown"])


# --------------------------------------------------------------------------------------------------- several optimizers


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic = net(seed=1, dtype=F64), net(seed=2, dtype=F64)
        self.bridge = nn.Linear(2, 4).to(F64)


class Game(Process):
    """Two players: what the maker makes goes through the critic."""

    def __init__(self, backward: Any) -> None:
        torch.manual_seed(0)
        self.model = Pair()
        self.backward = backward(self.model)

    def forward_step(self, batch: Any) -> Any:
        inputs, targets = batch
        made = self.model.bridge(self.model.maker(inputs))
        told = (self.model.critic(made.detach()) - targets).square().mean(1)
        fooled = self.model.critic(made).square().mean(1)
        maker = {"fool": fooled.mean(), "near": made.abs().mean()}
        return {"critic": (told.sum(), float(len(told))), "maker": maker}, {}


def both(
    model: Any, kind: Any = OptimizerStep, every: Mapping[str, int] | None = None, **given: Any
) -> MultiOptimizerStep:
    maker = [*model.maker.parameters(), *model.bridge.parameters()]
    parts = {
        "critic": kind(torch.optim.SGD(model.critic.parameters(), lr=0.1, momentum=0.9), **given),
        "maker": kind(
            torch.optim.AdamW(maker, lr=0.01),
            schedule=WarmupCosine(warmup_steps=2),
            weights={"near": 0.1},
            **given,
        ),
    }
    return MultiOptimizerStep(parts, every=every)


def by_hand(accumulate: int = 1) -> dict[str, Any]:
    game = Game(both)
    model = game.model
    critic, maker = (game.backward[name].optimizer for name in ("critic", "maker"))
    schedule = WarmupCosine(warmup_steps=2)
    step = 0
    for _ in range(2):
        for batch in Loader(points(20, dtype=F64), batch_size=8):
            losses, _ = game.forward_step(batch)
            lead, near = losses["critic"], losses["maker"]
            own = [*model.maker.parameters(), *model.bridge.parameters()]
            grads = torch.autograd.grad(near["fool"] + 0.1 * near["near"], own, retain_graph=True)
            (lead[0] / lead[1]).backward(inputs=list(model.critic.parameters()))
            for weight, grad in zip(own, grads, strict=True):
                weight.grad = grad
            for group in maker.param_groups:
                group["lr"] = 0.01 * schedule.factor(step, 6)
            critic.step()
            maker.step()
            critic.zero_grad()
            maker.zero_grad()
            step += 1
    return weights_of(model)


@pytest.mark.row("A51")
@pytest.mark.parametrize("accumulate", [1, 2, 8])
@pytest.mark.parametrize("kind", [OptimizerStep, ScaledOptimizerStep])
def test_two_optimizers_train_as_by_hand(accumulate: int, kind: Any) -> None:
    game = Game(lambda model: both(model, kind))

    state = engine(game, Loader(points(20, dtype=F64), batch_size=8, accumulate=accumulate)).run()

    assert state.step == 6
    expected = by_hand()
    atol = 1e-12 if kind is OptimizerStep else 1e-6  # the scale is 16 bits of fp32
    assert all(
        torch.allclose(each, expected[name], rtol=0, atol=atol)
        for name, each in weights_of(game.model).items()
    )


def test_what_each_optimizer_does_is_recorded_under_its_name() -> None:
    recorder = MemoryRecorder()
    engine(
        Game(lambda model: both(model, clip_norm=1.0)),
        Loader(points(20, dtype=F64), batch_size=8),
        recorder=recorder,
    ).run()

    names = {name for name, _, _ in recorder.points if name.startswith("train/")}
    assert names == {
        "train/loss",
        *(
            f"train/{what}/{who}"
            for what in ("loss", "lr", "grad_norm")
            for who in ("critic", "maker")
        ),
        "train/loss/maker/fool",
        "train/loss/maker/near",
    }
    critic, maker = (recorder.curve(f"train/loss/{who}") for who in ("critic", "maker"))
    total = [one + other for (_, one), (_, other) in zip(critic, maker, strict=True)]
    assert [value for _, value in recorder.curve("train/loss")] == pytest.approx(total)


@pytest.mark.parametrize("how", [{}, {"deferred": True}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("every", [{}, {"maker": 2}, {"maker": 3, "critic": 2}], ids=str)
@pytest.mark.parametrize("kind", [OptimizerStep, ScaledOptimizerStep])
def test_several_optimizers_resume_from_every_step_of_their_cycle(
    kind: Any, every: dict[str, int], how: dict[str, Any]
) -> None:
    def made() -> Any:
        game = Game(lambda model: both(model, kind, every=every, clip_norm=0.5))
        data = Loader(points(20, dtype=F64), batch_size=8, accumulate=how.get("accumulate", 1))
        deferred = how.get("deferred")
        return engine(game, data, epochs=3, recorder=MemoryRecorder(), deferred=deferred)

    whole, saved = made(), {}
    whole.on("step_end")(lambda engine, state: saved.setdefault(state.step, kept(engine)))
    whole.run()
    assert {"optimizer.critic", "optimizer.maker"} < capture_state(whole).keys()
    due = range(every.get("maker", 1), 10, every.get("maker", 1))
    schedule = WarmupCosine(warmup_steps=2)
    assert whole.recorder.curve("train/lr/maker") == [
        (step, 0.01 * schedule.factor(step - 1, 9)) for step in due
    ]

    for step in range(1, 9):
        resumed = made()
        restore(resumed, saved[step])
        resumed.run()
        assert same_bits(capture_state(resumed), capture_state(whole)), step
        names = {name for name, _, _ in whole.recorder.points}
        for name in names - {name for name in names if name.startswith("time/")}:
            later = [point for point in whole.recorder.curve(name) if point[0] > step]
            assert resumed.recorder.curve(name) == later, (step, name)


def test_a_checkpoint_of_other_optimizers_is_refused() -> None:
    two = engine(Game(both), Loader(points(20, dtype=F64), batch_size=8))
    one = engine(Game(lambda model: OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1))), [])

    with pytest.raises(CheckpointError, match="other optimizers"):
        restore(one, kept(two))


def test_a_part_that_is_not_due_is_left_as_it_is() -> None:
    game = Game(lambda model: both(model, every={"maker": 3}))
    runs = engine(
        game, Loader(points(20, dtype=F64), batch_size=8), epochs=3, recorder=MemoryRecorder()
    )
    seen = [weights_of(game.model)]
    runs.on("step_end")(lambda model: seen.append(weights_of(model)))

    runs.run()

    changed = [
        tuple(
            not same_bits(one[f"{who}.0.weight"], two[f"{who}.0.weight"])
            for who in ("maker", "critic")
        )
        for one, two in pairwise(seen)
    ]
    assert changed == [(step % 3 == 0, True) for step in range(1, 10)]
    assert [step for step, _ in runs.recorder.curve("train/lr/maker")] == [3, 6, 9]


def test_code_that_makes_its_updates_itself_is_told_which_parts_are_due() -> None:
    model = Pair()
    backward = both(model, every={"maker": 2})
    backward.start(0, total=4, epoch_length=None)
    updates, due = OwnUpdates(backward, "the loop"), []
    for step in range(4):
        due.append([name for name in backward if backward.is_due(name)])
        updates.settle(step, 1, None)

    assert due == [["critic"], ["critic", "maker"]] * 2


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_when_one_part_is_not_finite_no_weight_changes(policy: Any) -> None:
    game = Game(lambda model: both(model, non_finite=policy))
    before = weights_of(game.model)
    for parameter in game.model.bridge.parameters():
        parameter.register_hook(lambda grad: grad * math.nan)
    runs = engine(game, Loader(points(20, dtype=F64), batch_size=8))

    if policy == "stop":
        with pytest.raises(NonFiniteError, match="maker: The gradient is not finite at step 1"):
            runs.run()
    else:
        assert runs.run().step == 6
        assert game.backward["maker"].skipped == 6
    assert same_bits(weights_of(game.model), before)


@pytest.mark.parametrize(
    ("loss", "what", "fix"),
    [
        (torch.ones(()), "The loss is a Tensor; critic, maker want one each", "'critic': ..."),
        ({"critic": torch.ones(())}, "critic: The loss has no gradient", "detached"),
        ({"critics": 1}, "There is a loss for 'critics'", "did you mean `critic`?"),
        ({}, "There is no loss for 'critic'", ""),
    ],
)
def test_a_loss_that_no_optimizer_can_use_is_told(loss: Any, what: str, fix: str) -> None:
    backward = both(Pair())
    backward.begin(None)

    with pytest.raises(InputError, match=what) as caught:
        backward(loss)

    assert fix in caught.value.fix


def test_two_optimizers_of_one_weight_are_refused() -> None:
    model = net()
    parts = {
        name: OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1)) for name in ("one", "two")
    }

    with pytest.raises(InputError, match="one and two both train a parameter of the shape"):
        MultiOptimizerStep(parts)
    with pytest.raises(InputError, match="no optimizer"):
        MultiOptimizerStep({"one": parts["one"]}, every={"ome": 2})


def test_the_rate_of_one_of_several_optimizers_can_be_changed() -> None:
    runs = engine(
        Game(both), Loader(points(20, dtype=F64), batch_size=8), recorder=MemoryRecorder()
    )
    runs.bus.extend(SetValue(3, "optimizer.critic.lr", 0.02).handlers())

    runs.run()

    assert [rate for _, rate in runs.recorder.curve("train/lr/critic")] == [0.1] * 3 + [0.02] * 3
    with pytest.raises(InputError, match=r"no setting 'critc\.lr'") as caught:
        again = engine(Game(both), Loader(points(20, dtype=F64), batch_size=8))
        again.bus.extend(SetValue(3, "optimizer.critc.lr", 0.02).handlers())
        again.run()
    assert caught.value.fix == "did you mean `critic.lr`?"


def test_norms_are_those_of_all_optimizers() -> None:
    runs = engine(
        Game(both), Loader(points(20, dtype=F64), batch_size=8), recorder=MemoryRecorder()
    )
    runs.bus.extend(Norms("2 steps", depth=1).handlers())

    runs.run()

    for part in ("critic", "maker", "bridge"):
        assert [step for step, _ in runs.recorder.curve(f"grad_norm/{part}")] == [2, 4, 6]


def test_a_copied_model_is_not_trained_by_the_optimizers_of_the_first() -> None:
    game = Game(both)
    other = copy.deepcopy(game.model)
    before = weights_of(other)

    engine(game, Loader(points(20, dtype=F64), batch_size=8)).run()

    assert same_bits(weights_of(other), before)
