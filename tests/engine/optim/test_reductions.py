"""What a loss was divided by is known where torch divided it, and else it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from assay.core.errors import InputError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, OptimizerStep, Supervised, evaluate
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.losses import WeightedLoss
from assay.engine.optim.reductions import Reductions
from engine.toys import net, points, same_bits, weights_of

X = torch.arange(12.0, dtype=torch.float64).reshape(4, 3).div(10).requires_grad_()
Y = torch.tensor([0, 2, -100, 1])
MASK = torch.tensor([[True, False, True]] * 4)
ONLY = torch.tensor([[True, False, False]] + [[False] * 3] * 3)
NONE = torch.zeros(4, 3, dtype=torch.bool)
ONE = torch.ones(3, dtype=torch.float64)


def noted(compute: Callable[[], Tensor]) -> tuple[Tensor, Any]:
    """The loss, and what it was divided by as (number,): None for a sum, () if nobody knows."""
    with Reductions(len(X)) as watch:
        loss = compute()
    weight = watch.weight(loss)
    return loss.detach(), (None if weight is None else float(weight),) if watch.knows(loss) else ()


@pytest.mark.parametrize(
    ("compute", "weight"),
    [
        (lambda: F.cross_entropy(X, Y), 3),
        (lambda: F.cross_entropy(X, Y, ONE * 2), 6),
        (lambda: F.nll_loss(X, Y.clamp(min=0), ignore_index=0), 2),
        (lambda: F.cross_entropy(X, Y.clamp(min=0).byte(), ONE * 2), 8),
        (lambda: F.cross_entropy(torch.eye(200)[:2], torch.tensor([156, 1]).byte()), 2),
        (lambda: nn.MSELoss()(X, X + 1), 12),
        (lambda: F.l1_loss(X[MASK], X[MASK] + 1), 8),
        (lambda: 2 * F.cross_entropy(X, Y) / 3, 3),
        (lambda: F.cross_entropy(X, Y).float().to("cpu").clone(), 3),
        (lambda: -F.l1_loss(X, X + 1) + 0.5, 12),
        (lambda: (X * MASK).sum() / MASK.sum(), 8),
        (lambda: 0.5 * (X * MASK).sum() / MASK.float().sum(), 8),
        (lambda: (X * MASK).sum() / (MASK.sum() + 1e-6), 8 + 1e-6),
        (lambda: (X * MASK).sum() / MASK.sum().clamp(min=1), 8),
        (lambda: (X * MASK).sum() / MASK.sum().clamp(1e-6), 8),
        (lambda: F.l1_loss(X, X + 1, reduction="sum") / MASK.sum(), 8),
        (lambda: (X * 0).sum() / NONE.sum().clamp(min=1), 0),
        (lambda: (X * ONLY).sum() / torch.clamp(ONLY.sum(), min=1), 1),
    ],
)
def test_what_a_mean_was_divided_by_is_known(compute: Any, weight: float) -> None:
    _, known = noted(compute)

    assert known == pytest.approx((weight,), rel=1e-6)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: (X - 1).square().mean(),
        lambda: torch.mean(X),
        lambda: X.square().sum(1).mean(),
        lambda: 1 - X.mean(),
        lambda: X.mean().add_(1).mul_(2),
        lambda: torch.stack([F.mse_loss(row, row + 1) for row in X], 0)[:, None].mean(),
        lambda: F.mse_loss(X, X + 1) + 0.1 * X.square().mean(),
        lambda: F.mse_loss(X, X + 1) + 0.1 * X.square().sum(1).mean(),
        lambda: sum([X.mean(), X.square().mean()]),
    ],
)
def test_a_mean_over_the_samples_needs_no_weight(compute: Any) -> None:
    with Reductions(len(X)) as watch:
        loss = compute()

    assert watch.knows(loss)
    assert watch.weigh(loss, None) is loss


@pytest.mark.parametrize(
    "compute",
    [
        lambda: F.cross_entropy(X, Y, reduction="sum"),
        lambda: F.cross_entropy(X, Y, reduction="sum") * 0.5,
        lambda: F.cross_entropy(X, Y, reduction="sum") + 2 * F.mse_loss(X, X + 1, reduction="sum"),
    ],
)
def test_a_sum_of_a_criterion_is_a_sum(compute: Any) -> None:
    _, known = noted(compute)

    assert known == (None,)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: F.cross_entropy(X, Y) + X.mean(),  # of targets that count, of samples
        lambda: F.cross_entropy(X, Y) + 0.1 * ONE.square().sum(),  # what does not hang on the batch
        lambda: F.l1_loss(X[MASK], X[MASK] + 1) + X.mean(),
        lambda: F.mse_loss(X, X + 1) * X.detach().mean(),
        lambda: F.mse_loss(X, X + 1).sqrt(),
        lambda: X.mean().exp_(),
        lambda: torch.stack([F.cross_entropy(X, Y), X.mean()]).mean(),
        lambda: torch.stack([X.mean()] * 4).mean(),  # as many as samples
        lambda: torch.logsumexp(X, (0, 1)),
        lambda: X.sum() + X.mean(),
        lambda: X.sum() + 1,
        lambda: X.median(),
        lambda: ONE.mean(),
        lambda: F.mse_loss(X, X + 1, size_average=True),
        lambda: sum(F.mse_loss(row, row + 1) for row in X),
        # Samples one by one, of as many numbers as there are samples.
        lambda: sum(F.mse_loss(row, row + 1) for row in X @ X.T),
        lambda: sum(F.mse_loss(row, row + 1) for row in (X @ X.T).unbind()),
        lambda: sum(F.mse_loss((X @ X.T)[i], X[:, 0]) for i in range(4)),
        lambda: X.sum(None, keepdim=True).mean(),
        lambda: X[MASK].mean(),  # a mask may choose as many as there are samples
        lambda: X.mean(0).mean(),
        lambda: X.T.mean(),
        # A sum of one's own may be over the batch or in it, and a number be anything.
        lambda: X.sum(),
        lambda: X.mean(0).sum(),
        lambda: (X @ X.T).sum(0).mean(),
        lambda: (X[:, 0] / X[:, 0].sum() * X[:, 0]).sum(),
        lambda: X.square().sum() / len(X),
        lambda: X.square().sum() / 12,
        lambda: X.sum() * 0.25,
        lambda: F.mse_loss(X, X + 1, reduction="sum") / X.numel(),
        lambda: F.mse_loss(X, X + 1) * len(X),
        lambda: X.mean() / X.shape[1],
        lambda: (X * MASK).mean() / float(MASK.float().mean()),
        lambda: (X * MASK).sum() / max(1, MASK.sum().item()),
        lambda: (X * MASK).sum() / max(MASK.sum(), 1),
        lambda: X.sum() / (MASK.sum().item() + 0.5),
        # Divisors that are no sums over samples, or more than one.
        lambda: X.sum() / torch.tensor(100.0),
        lambda: X.sum() / ONE.sum(),
        lambda: X.sum() / X.square().sum(),
        lambda: (X * MASK).sum() / (MASK.sum() + 1),
        lambda: (X * MASK).sum() / MASK.sum().clamp(min=10),
        lambda: (X * MASK).sum() / MASK.sum().clamp(max=10),
        lambda: (X * MASK).mean() / MASK.float().mean(),
        lambda: (X * MASK).sum() / (2 * MASK.sum().clamp(min=1)),
        lambda: (X * MASK).sum() / MASK.sum() + (X * MASK).sum() / MASK.sum(),
    ],
)
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_of_anything_else_nobody_knows(compute: Any) -> None:
    assert noted(compute)[1] == ()


def test_a_mean_over_nothing_is_a_sum_of_nothing_and_gives_no_gradient() -> None:
    scores = torch.randn(4, 3, requires_grad=True)
    for how in ({}, {"label_smoothing": 0.1}, {"weight": torch.ones(3)}):
        with Reductions(4) as watch:
            loss = F.cross_entropy(scores, torch.full((4,), -100), **how)
        weighed = watch.weigh(loss, None)
        assert loss.isnan() and isinstance(weighed, WeightedLoss)

        (gradient,) = torch.autograd.grad(weighed.share(4), scores)

        assert float(weighed.weight) == weighed.share(4).item() == 0.0
        assert gradient.eq(0).all()


def test_nothing_is_computed_otherwise_while_it_is_watched() -> None:
    plain = (
        nn.CrossEntropyLoss()(X, Y),
        (X[MASK] * 2).mean(),
        torch.stack([X.sum(), X.mean()]).prod(),
    )
    with Reductions(4):
        watched = (
            nn.CrossEntropyLoss()(X, Y),
            (X[MASK] * 2).mean(),
            torch.stack([X.sum(), X.mean()]).prod(),
        )

    assert same_bits(list(plain), list(watched))


# -------------------------------------------------------------------------------------------------- criteria of users


class Focal(nn.Module):
    """A mean that torch takes, of what it does not know: over the samples."""

    def forward(self, pred: Tensor, target: Tensor) -> Any:
        return ((pred - target).square() * (pred - target).abs().detach()).mean()


class Root(Focal):
    """The mean of each sample by itself would have another root: nothing can be divided."""

    def forward(self, pred: Tensor, target: Tensor) -> Any:
        return F.mse_loss(pred, target).sqrt()


class Paired(Focal):
    """Says itself what it is divided by."""

    def forward(self, pred: Tensor, target: Tensor) -> Any:
        weights = target.abs()
        return ((pred - target).square() * weights).sum(), weights.sum()


class Both(Focal):
    def forward(self, pred: Tensor, target: Tensor) -> Any:
        weights = target.abs().detach()
        return {
            "plain": F.mse_loss(pred, target),
            "weighted": ((pred - target).square() * weights).sum() / weights.sum(),
        }


def trained(
    criterion: nn.Module, micro: int, **given: Any
) -> tuple[dict[str, Any], MemoryRecorder]:
    """Weights and curves of two steps, of 12 and 8 samples, in double precision."""
    model, recorder = net(dtype=torch.float64), MemoryRecorder()
    process = Supervised(model, criterion, torch.optim.SGD(model.parameters(), lr=0.05), **given)
    data = points(20, dtype=torch.float64)
    Engine(process, Loader(data, batch_size=12, micro_batch_size=micro), recorder=recorder).run()
    return weights_of(model), recorder


@pytest.mark.parametrize("criterion", [Focal(), Paired(), Both()])
def test_a_criterion_of_the_user_s_counts_micro_batches_as_one_batch(criterion: nn.Module) -> None:
    whole, expected = trained(criterion, 12)
    parts, found = trained(criterion, 4)

    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=1e-12, atol=1e-12)
    assert [(name, step) for name, step, _ in found.points] == [
        (name, step) for name, step, _ in expected.points
    ]
    assert [value for *_, value in found.points] == pytest.approx(
        [value for *_, value in expected.points], rel=1e-12
    )


def test_a_loss_that_cannot_be_added_up_is_refused_where_there_are_parts_and_only_there() -> None:
    trained(Root(), 12)

    with pytest.raises(InputError, match="what Root divides its loss by is unknown") as caught:
        trained(Root(), 4)

    assert "(sum, weight)" in caught.value.fix and 'reduction = "mean"' in caught.value.fix


def test_what_such_a_loss_is_can_be_said() -> None:
    means, _ = trained(Root(), 4, reduction="mean")
    sums, recorder = trained(Root(), 4, reduction="sum")
    _, single = trained(Root(), 12)

    assert not same_bits(means, sums)
    assert recorder.curve("train/loss")[0][1] > single.curve("train/loss")[0][1]


# ------------------------------------------------------------------------- written by hand, in parts


def first(target: Tensor) -> Tensor:
    """A mask of samples: of some batches nothing, of others all."""
    return target[:, 0] > 1


def each(pred: Tensor, target: Tensor) -> Tensor:
    return (pred - target).square()


def in_python(pred: Tensor, target: Tensor) -> Tensor:
    mask = first(target)
    return (each(pred, target).sum(1) * mask).sum() / max(1, int(mask.sum()))


WRITTEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mean": lambda p, t: each(p, t).mean(),
    "mean of sums": lambda p, t: each(p, t).sum(1).mean(),
    "flat mean": lambda p, t: each(p, t).flatten().mean(),
    "mean of chosen": lambda p, t: each(p, t)[first(t)].mean(),
    "mean of chosen entries": lambda p, t: each(p, t)[t > 1].mean(),
    "criterion of chosen": lambda p, t: F.l1_loss(p[first(t)], t[first(t)]),
    "criterion of chosen entries": lambda p, t: F.mse_loss(p[t > 1], t[t > 1]),
    "sum": lambda p, t: each(p, t).sum(),
    "criterion's sum": lambda p, t: 0.5 * F.mse_loss(p, t, reduction="sum"),
    "sum over a constant": lambda p, t: each(p, t).sum() / 4,
    "sum over samples": lambda p, t: each(p, t).sum() / len(p),
    "sum over places": lambda p, t: each(p, t).sum() / p.shape[1],
    "sum over entries": lambda p, t: F.mse_loss(p, t, reduction="sum") / p.numel(),
    "sum times a share": lambda p, t: each(p, t).sum() * (1 / len(p)),
    "mean times samples": lambda p, t: each(p, t).mean() * len(p),
    "mean over samples, summed": lambda p, t: each(p, t).mean(0).sum(),
    "mean over samples, squared": lambda p, t: each(p, t).mean(0).square().sum(),
    "masked": lambda p, t: (each(p, t).sum(1) * first(t)).sum() / first(t).sum(),
    "masked, floor": lambda p, t: (each(p, t).sum(1) * first(t)).sum() / first(t).sum().clamp(1),
    "masked, small floor": lambda p, t: (
        (each(p, t) * (t > 1)).sum() / (t > 1).sum().clamp(min=1e-12)
    ),
    "masked, eps": lambda p, t: (each(p, t) * (t > 1)).sum() / ((t > 1).sum() + 1e-12),
    "masked, one more": lambda p, t: (each(p, t) * (t > 1)).sum() / ((t > 1).sum() + 1),
    "masked, in Python": in_python,
    "masked, maximum": lambda p, t: (each(p, t).sum(1) * first(t)).sum() / max(first(t).sum(), 1),
    "masked means": lambda p, t: (each(p, t) * (t > 1)).mean() / (t > 1).double().mean(),
    "masked mean, number": lambda p, t: (
        (each(p, t) * (t > 1)).mean() / float((t > 1).double().mean())
    ),
    "weighted": lambda p, t: (each(p, t) * t.abs()).sum() / t.abs().sum(),
    "weighted, normed": lambda p, t: (each(p, t) * (t.abs() / t.abs().sum())).sum(),
    "weighted, floor": lambda p, t: (each(p, t) * t.abs()).sum() / t.abs().sum().clamp(min=1),
    "sample by sample": lambda p, t: torch.stack(
        [F.mse_loss(*two) for two in zip(p, t, strict=True)]
    ).mean(),
    "added samples": lambda p, t: sum(F.mse_loss(*two) for two in zip(p, t, strict=True)) / len(p),
    "two": lambda p, t: F.mse_loss(p, t) + 0.5 * p.square().sum(1).mean(),
    "two heads": lambda p, t: torch.stack(
        [F.cross_entropy(p, (t[:, 0] > 1).long()), F.cross_entropy(p, labels(t))]
    ).mean(),
    "two masks": lambda p, t: F.mse_loss(p, t) + F.l1_loss(p[t > 1], t[t > 1]),
    "labels": lambda p, t: F.cross_entropy(p, labels(t)),
    "labels, twice": lambda p, t: 2 * F.cross_entropy(p, labels(t)),
    "labels and size": lambda p, t: F.cross_entropy(p, labels(t)) + p.square().mean(),
    "labels by hand": lambda p, t: (
        F.cross_entropy(p, labels(t), reduction="sum") / (labels(t) != -100).sum().clamp(min=1)
    ),
    "root": lambda p, t: F.mse_loss(p, t).sqrt(),
    "pair": lambda p, t: ((each(p, t).sum(1) * first(t)).sum(), first(t).sum()),
    "by name": lambda p, t: {"mean": each(p, t).mean(), "labels": F.cross_entropy(p, labels(t))},
}


def labels(target: Tensor) -> Tensor:
    return torch.where(first(target), (target[:, 1] > 0).long(), -100)


KNOWN = {
    *("mean", "mean of sums", "criterion of chosen", "criterion of chosen entries"),
    *("criterion's sum", "masked", "masked, floor", "masked, small floor", "masked, eps"),
    *("weighted", "weighted, floor", "two", "labels", "labels, twice", "labels by hand", "pair"),
    "by name",
}


def gradient_of(criterion: Callable[..., Any], parts: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """The loss of a step of these micro-batches, and its gradients."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=1.0))
    process = Supervised(model, criterion, backward=backward)  # type: ignore[arg-type]
    backward.begin([len(inputs) for inputs, _ in parts])
    for part in parts:
        process.training_step(part)
    before = weights_of(model)
    backward.update(0)
    loss = torch.tensor(backward.loss, dtype=torch.float64)
    return [loss, *(before[name] - weight for name, weight in weights_of(model).items())]


@pytest.mark.parametrize("name", WRITTEN)
@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4), draw=st.integers(0, 99))
@settings(max_examples=8)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_in_parts_is_that_of_one_batch_or_refused(
    name: str, sizes: list[int], draw: int
) -> None:
    torch.manual_seed(draw)
    inputs, targets = torch.randn(sum(sizes), 3).double(), torch.randn(sum(sizes), 2).double() + 1
    assume(any(first(targets)) and float((targets.abs()).sum()) >= 1)
    parts = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
    whole = gradient_of(WRITTEN[name], [(inputs, targets)])

    try:
        found = gradient_of(WRITTEN[name], parts)
    except InputError as refused:
        assert name not in KNOWN
        assert "unknown" in str(refused)
        return
    except NonFiniteError:
        assert name == "masked"  # 0 / 0 in one of the parts
        return
    torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "by name"])
@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4), draw=st.integers(0, 99))
@settings(max_examples=4)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_split_in_batches_has_the_loss_of_one_batch_or_it_is_said(
    name: str, sizes: list[int], draw: int
) -> None:
    torch.manual_seed(draw)
    inputs, targets = torch.randn(sum(sizes), 3).double(), torch.randn(sum(sizes), 2).double() + 1
    assume(any(first(targets)) and float((targets.abs()).sum()) >= 1)
    model = nn.Linear(3, 2).double()

    said, losses = [], []
    for split in ([sum(sizes)], sizes):
        process = Supervised(model, WRITTEN[name])  # type: ignore[arg-type]
        batches = list(zip(inputs.split(split), targets.split(split), strict=True))
        recorder = MemoryRecorder()
        found, _ = evaluate(process, batches, split="valid", recorder=recorder)
        losses.append(found["valid/loss"])
        said += [fact for fact in recorder.facts if isinstance(fact, Warned)]

    assert losses[1] == pytest.approx(losses[0], rel=1e-9) or (said and name not in KNOWN)


def test_that_a_loss_is_unknown_is_said_once_for_all_evaluations() -> None:
    process, recorder = Supervised(net(), Root()), MemoryRecorder()

    for _ in range(2):
        evaluate(process, Loader(points(20), batch_size=8), split="valid", recorder=recorder)

    (told,) = recorder.facts
    assert "valid/loss is the mean over the samples" in told.message
    assert "what Root divides it by is unknown" in told.message
    assert 'reduction = "mean"' in told.message


def test_of_a_loss_that_was_declared_nothing_is_said() -> None:
    process, recorder = Supervised(net(), Root(), reduction="mean"), MemoryRecorder()

    evaluate(process, Loader(points(20), batch_size=8), split="valid", recorder=recorder)

    assert recorder.facts == []


def test_what_is_evaluated_with_such_a_loss_counts_by_its_samples() -> None:
    process = Supervised(net(), Root())

    found, _ = evaluate(process, Loader(points(20), batch_size=8, split="valid"), split="valid")

    expected = [
        float(process.validation_step(batch)["loss"]) * len(batch[0])
        for batch in Loader(points(20), batch_size=8)
    ]
    assert found["valid/loss"] == pytest.approx(sum(expected) / 20)


@given(
    st.lists(
        st.lists(st.sampled_from([-100, 0, 1, 2]), min_size=1, max_size=4), min_size=1, max_size=4
    )
)
def test_whatever_is_ignored_where_the_sum_of_the_parts_is_the_whole(
    parts: list[list[int]],
) -> None:
    draw = torch.Generator().manual_seed(0)
    target = torch.tensor([each for part in parts for each in part])
    scores = torch.randn(len(target), 3, generator=draw, dtype=torch.float64, requires_grad=True)
    pairs = []
    for rows, part in zip(scores.split([len(part) for part in parts]), parts, strict=True):
        with Reductions(len(part)) as watch:
            loss = F.cross_entropy(rows, torch.tensor(part), ONE * 2, label_smoothing=0.1)
        weighed = watch.weigh(loss, None)
        pairs.append((weighed.share(len(target)), weighed.weight))

    total, weight = (torch.stack([pair[i] for pair in pairs]).sum() for i in (0, 1))

    expected = F.cross_entropy(scores, target, ONE * 2, label_smoothing=0.1)
    torch.testing.assert_close(total * len(target) / weight, expected, equal_nan=True)


def test_a_mean_over_all_of_its_samples_is_itself_to_the_last_bit() -> None:
    mean = torch.tensor(1 / 3)

    assert same_bits(WeightedLoss(mean, torch.tensor(7)).share(7), mean)
    assert same_bits(WeightedLoss(mean, 7).share(7), mean)


def test_micro_batches_of_which_nothing_is_ignored_are_weighted_to_the_bits_of_plain_means() -> (
    None
):
    class Plain(Supervised):
        def forward_step(self, batch: Any) -> Any:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            return loss, {"loss": loss.detach()}

    inputs, targets = points(21).tensors
    data = TensorDataset(inputs, targets[:, 0].gt(0).long())
    models = [net(), net()]
    for kind, model in zip((Supervised, Plain), models, strict=True):
        process = kind(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.05))
        Engine(process, Loader(data, batch_size=9, micro_batch_size=3), epochs=3).run()

    assert same_bits(weights_of(models[0]), weights_of(models[1]))
