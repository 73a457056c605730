"""One update: the gradient of the whole window, and non-finite or missing gradients."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import Loader, NonFiniteError, OptimizerStep, Process, WarmupCosine
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import engine, kept, net, points, same_bits, supervised, weights_of

F64 = torch.float64


def gradients(model: nn.Module) -> list[Tensor]:
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


class Frozen(torch.optim.SGD):
    """Keeps the gradients it was to step with, and changes nothing."""

    seen: list[Tensor]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.seen = [
            p.grad.clone()
            for group in self.param_groups
            for p in group["params"]
            if p.grad is not None
        ]


def frozen(model: nn.Module) -> OptimizerStep:
    return OptimizerStep(Frozen(model.parameters(), lr=0.1))


def seen(backward: OptimizerStep) -> list[Tensor]:
    return backward.optimizer.seen  # type: ignore[attr-defined, no-any-return]


# -------------------------------------------------------------------------------------------------------- accumulation


@pytest.mark.row("A52", "F02")
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("sizes", [[8, 8, 8, 8], [8, 8, 3], [5, 1], [7]])
def test_micro_batches_give_the_gradient_of_their_whole_window(
    sizes: list[int], pair: bool
) -> None:
    model = net(dtype=F64)
    inputs, targets = points(sum(sizes), dtype=F64).tensors
    nn.functional.mse_loss(model(inputs), targets).backward()
    expected, whole = gradients(model), nn.functional.mse_loss(model(inputs), targets).item()
    backward = frozen(model)

    backward.begin(sizes)
    losses = []
    for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True):
        error = (model(x) - y).square()
        losses.append(error.sum() if pair else error.mean())
        backward((losses[-1], float(error.numel())) if pair else losses[-1])
    assert backward.update(0)

    assert all(
        torch.allclose(mine, own, rtol=0, atol=1e-12)
        for mine, own in zip(seen(backward), expected, strict=True)
    )
    assert backward.loss == pytest.approx(whole, rel=1e-12)
    for loss in losses:
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


class Tokens(Process):
    """Process with a loss per token, averaged over all tokens of a step, not over samples."""

    def __init__(self, model: nn.Module, backward: OptimizerStep) -> None:
        self.model = model
        self.backward = backward

    def forward_step(self, batch: Any) -> Any:
        inputs, targets, mask = batch
        error = (self.model(inputs) - targets).square().mean(-1) * mask
        return (error.sum(), mask.sum()), {"loss": error.detach()}


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_a_mean_over_tokens_is_the_same_however_the_step_is_split(accumulate: int) -> None:
    data = torch.utils.data.TensorDataset(
        *points(30, dtype=F64).tensors, (torch.arange(30) % 7 > 2).long()
    )

    def trained(accumulate: int) -> tuple[dict[str, Any], list[Any]]:
        model, recorder = net(dtype=F64), MemoryRecorder()
        process = Tokens(model, OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1)))
        engine(process, Loader(data, batch_size=8, accumulate=accumulate), recorder=recorder).run()
        return weights_of(model), recorder.curve("train/loss")

    (split, losses), (whole, expected) = trained(accumulate), trained(1)

    assert all(torch.allclose(split[name], whole[name], rtol=0, atol=1e-12) for name in whole)
    assert [loss for _, loss in losses] == pytest.approx([loss for _, loss in expected], rel=1e-12)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("micro", [2, 4, 6])
def test_training_with_accumulation_equals_training_with_large_batches(
    optimizer: Any, micro: int
) -> None:
    """31 samples in steps of 12: the last step has 7, its last micro-batch 1, 3 or 1."""

    def trained(micro: int) -> dict[str, Any]:
        model = net(dtype=F64)
        process = supervised(model, optimizer=optimizer(model.parameters(), lr=0.01))
        train = Loader(points(31, dtype=F64), batch_size=12, micro_batch_size=micro, shuffle=True)
        assert engine(process, train, epochs=4).run().step == 12
        return weights_of(model)

    split, whole = trained(micro), trained(12)

    assert all(torch.allclose(split[name], whole[name], rtol=0, atol=1e-12) for name in whole)


def test_any_iterable_is_accumulated_by_its_real_sizes() -> None:
    inputs, targets = points(20, dtype=F64).tensors

    def trained(sizes: list[int], accumulate: int) -> dict[str, Any]:
        model = net(dtype=F64)
        batches = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
        assert engine(supervised(model), batches, accumulate=accumulate).run().step == 4
        return weights_of(model)

    split, whole = trained([5, 3, 4, 8], 2), trained([8, 12], 1)

    assert all(torch.allclose(split[name], whole[name], rtol=0, atol=1e-12) for name in whole)


def test_means_and_pairs_in_one_window_are_refused() -> None:
    model = net()
    backward = frozen(model)
    inputs, targets = points(4).tensors
    backward.begin([2, 2])
    backward((model(inputs[:2]) - targets[:2]).square().mean())

    for weight in (4.0, None):
        with pytest.raises(InputError, match="two kinds"):
            backward(((model(inputs[2:]) - targets[2:]).square().sum(), weight))


def test_a_loss_without_a_name_and_named_ones_in_one_window_are_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    backward = OptimizerStep(torch.optim.SGD([weight], lr=0.1))
    backward.begin([1, 1])
    backward(weight.sum())
    backward({"aux": weight.sum()})

    with pytest.raises(InputError, match="some have names, and some have none"):
        backward.update(0)


def test_batches_of_unknown_size_cannot_be_accumulated() -> None:
    with pytest.raises(InputError, match="how many these hold is unknown"):
        frozen(net()).begin([0, 0])


@pytest.mark.row("D16")
def test_gradients_are_zero_before_a_window_whatever_was_there() -> None:
    model = net()
    inputs, targets = points(4).tensors
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward(retain_graph=True)
    expected = gradients(model)
    backward = frozen(model)

    for _ in range(2):  # gradients of somebody else; then those of a window that was never finished
        backward.begin(None)
        assert gradients(model) == []
        backward(nn.functional.mse_loss(model(inputs), targets))
        assert same_bits(gradients(model), expected)
    backward.update(0)

    assert same_bits(seen(backward), expected)
    assert gradients(model) == []


def test_the_optimizer_sees_what_was_clipped() -> None:
    model = net()
    inputs, targets = points(8).tensors
    backward = OptimizerStep(Frozen(model.parameters(), lr=0.1), clip_norm=0.25)
    backward.begin(None)
    backward(nn.functional.mse_loss(model(inputs), targets))
    unclipped = torch.nn.utils.get_total_norm(gradients(model)).item()

    backward.update(0)

    assert backward.grad_norm == pytest.approx(unclipped) and unclipped > 0.25
    assert torch.nn.utils.get_total_norm(seen(backward)).item() == pytest.approx(0.25, rel=1e-5)


# ------------------------------------------------------------------------------------------------------ what is no loss


@pytest.mark.parametrize(
    ("loss", "what", "fix"),
    [
        (None, "The loss is a NoneType", "what the criterion gave"),
        (0.5, "The loss is a float", "not its .item()"),
        ({"far": 1}, "The loss 'far' is a int", "what the criterion gave"),
        ((torch.ones(()), 1, 2), "The loss is a tuple of 3", "what the criterion gave"),
        (torch.ones(3, requires_grad=True), r"has the shape \(3,\)", "loss.mean()"),
        ((torch.ones(3, requires_grad=True), 3.0), r"has the shape \(3,\)", "loss.mean()"),
        (
            torch.ones((), dtype=torch.complex64, requires_grad=True),
            "is a complex number",
            "loss.real",
        ),
        (torch.ones(()), "The loss has no gradient", "detached"),
        ((torch.ones(()), 1.0), "The loss has no gradient", "frozen"),
    ],
)
@pytest.mark.parametrize("sizes", [None, [2, 2]])
def test_what_is_no_loss_is_told_by_what_it_is(
    loss: Any, what: str, fix: str, sizes: list[int] | None
) -> None:
    backward = frozen(net())
    backward.begin(sizes)

    with pytest.raises(InputError, match=what) as caught:
        backward(loss)

    assert fix in caught.value.fix
    assert caught.value.where == "forward_step"


def test_an_error_of_the_backward_pass_itself_stays_what_it_is() -> None:
    model = net()
    backward = frozen(model)

    def explode(gradient: Tensor) -> None:
        raise RuntimeError("out of memory")

    pred = model(torch.ones(1, 4))
    pred.register_hook(explode)
    backward.begin(None)

    with pytest.raises(RuntimeError, match="out of memory"):
        backward(pred.sum())


def test_an_optimizer_that_computes_the_loss_again_is_refused_with_the_way_to_use_it() -> None:
    model = net()

    with pytest.raises(InputError, match="LBFGS computes the loss again within its step") as caught:
        engine(supervised(model, optimizer=torch.optim.LBFGS(model.parameters()))).run()
    assert "StepFunction" in caught.value.fix


def test_an_optimizer_of_other_parameters_is_told_before_it_trains_nothing() -> None:
    process = supervised(net(), optimizer=torch.optim.SGD(net().parameters(), lr=0.1))

    with pytest.raises(InputError, match="no gradient to any parameter of the optimizer") as caught:
        engine(process).run()

    assert "the model that is trained" in caught.value.fix


# ----------------------------------------------------------------------------------------------------------- not finite


class Spoilt(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """20 samples in order; what is wrong with the ninth spoils the second of three steps."""

    def __init__(self, value: float = math.nan) -> None:
        self.inputs, self.targets = points(20).tensors
        self.inputs[8, 0] = value

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


def spoilt_engine(
    *, non_finite: Any, clip: float | None = None, value: float = math.nan, **given: Any
) -> Any:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    backward = OptimizerStep(
        optimizer, non_finite=non_finite, clip_norm=clip, schedule=WarmupCosine(warmup_steps=3)
    )
    return engine(
        supervised(model, backward=backward), Loader(Spoilt(value), batch_size=8), **given
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_stop_leaves_everything_as_it_was_before_the_step(value: float, clip: float | None) -> None:
    runs = spoilt_engine(non_finite="stop", clip=clip, value=value)
    before: list[Any] = []
    runs.on("step_end")(lambda engine: before.append(kept(engine)))

    with pytest.raises(NonFiniteError):
        runs.run()

    assert len(before) == 1
    assert same_bits(capture_state(runs), before[0])
    assert all(weight.isfinite().all() for weight in runs.process.model.parameters())


def test_a_non_finite_stop_says_what_where_and_what_to_do() -> None:
    with pytest.raises(NonFiniteError) as caught:
        spoilt_engine(non_finite="stop").run()

    assert caught.value.what == "The loss is nan at step 2."
    assert caught.value.where == "the data: batch[0] holds nan, in sample 8 of data.train"
    assert 'non_finite="skip"' in caught.value.fix and "still those of before" in caught.value.fix
    assert caught.value.exit_code == 1


class Root(nn.Module):
    """The square root of nothing: finite itself, its slope is not."""

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        return (pred - pred.detach()).square().sum().sqrt()


@pytest.mark.parametrize(
    ("clip", "what"), [(1.0, "The gradient norm is nan"), (None, "The gradient is not finite")]
)
def test_a_gradient_that_is_not_finite_is_found_though_the_loss_is(
    clip: float | None, what: str
) -> None:
    process = supervised(net())
    process.backward.clip_norm = clip
    process.criterion = Root()
    before = weights_of(process.model)

    with pytest.raises(NonFiniteError, match=f"{what} at step 1"):
        engine(process).run()

    assert process.backward.loss == 0.0
    assert same_bits(weights_of(process.model), before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_are_looked_at_whatever_they_are_made_of(bad: float, sparse: bool) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(5, 3, sparse=sparse)
    scale = nn.Parameter(torch.ones((), dtype=F64))
    backward = OptimizerStep(
        torch.optim.SGD([*table.parameters(), scale], lr=0.1), non_finite="skip"
    )
    for factor in (bad, 1.0):
        looked_up = table(torch.tensor([1, 4]))
        looked_up.register_hook(lambda gradient, factor=factor: gradient * factor)
        backward.begin(None)
        backward(looked_up.sum() * scale)
        assert backward.update(0) == math.isfinite(factor)

    assert backward.skipped == (not math.isfinite(bad))


@pytest.mark.parametrize("clip", [None, 1.0])
def test_skip_leaves_out_the_update_and_goes_on(clip: float | None) -> None:
    runs = spoilt_engine(non_finite="skip", clip=clip, epochs=2)
    weights: list[Any] = [weights_of(runs.process.model)]
    runs.on("step_end")(lambda model: weights.append(weights_of(model)))

    state = runs.run()

    assert state.step == 6
    assert runs.process.backward.skipped == 2
    unchanged = [same_bits(one, other) for one, other in pairwise(weights)]
    assert unchanged == [False, True, False, False, True, False]
    assert all(weight.isfinite().all() for weight in runs.process.model.parameters())


def test_a_run_that_goes_on_after_a_skipped_step_has_the_bits_of_the_uninterrupted_one() -> None:
    whole = spoilt_engine(non_finite="skip", recorder=MemoryRecorder())
    resumed = spoilt_engine(non_finite="skip", recorder=MemoryRecorder())
    whole.on("step_end", every=2)(
        lambda engine, state: state.step == 2 and restore(resumed, kept(engine))
    )
    whole.run()

    resumed.run()

    assert same_bits(capture_state(resumed), capture_state(whole))
    rates = whole.recorder.curve("train/lr")
    assert len({rate for _, rate in rates}) == 6  # a step that is left out still has its rate
    assert resumed.recorder.curve("train/lr") == rates[2:]


def test_ignore_goes_on_with_whatever_comes_out() -> None:
    runs = spoilt_engine(non_finite="ignore")

    state = runs.run()

    assert state.step == 6
    assert runs.process.backward.skipped == 0
    assert all(weight.isnan().any() for weight in runs.process.model.parameters())


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_weights_that_are_broken_already_are_said_to_be(policy: Any) -> None:
    runs = spoilt_engine(non_finite=policy, value=0.0)

    @runs.on("step_end", every=1)
    def damage(model: nn.Module) -> None:
        with torch.no_grad():
            next(model.parameters())[0, 0] = math.inf

    with pytest.raises(
        NonFiniteError, match="at step 2: weights became infinite or NaN in a step before"
    ) as caught:
        runs.run()

    assert "learning rate" in caught.value.fix
    assert "still those" not in caught.value.fix


def test_after_a_non_finite_stop_the_same_objects_train_again() -> None:
    runs = spoilt_engine(non_finite="stop")
    with pytest.raises(NonFiniteError):
        runs.run()
    again = engine(runs.process, Loader(points(8), batch_size=8), steps=3)

    again.run()

    assert all(weight.isfinite().all() for weight in runs.process.model.parameters())
