"""What a loss was divided by is known where torch divided it, and else it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, Supervised, evaluate
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
        (lambda: nn.MSELoss()(X, X + 1), 12),
        (lambda: (X - 1).square().mean(), 12),
        (lambda: torch.mean(X), 12),
        (lambda: X.square().sum(1).mean(), 4),
        (lambda: X.square().sum() / len(X), 4),
        (lambda: X.square().sum() / 12, 12),
        (lambda: (X * MASK).sum() / MASK.sum(), 8),
        (lambda: (X * MASK).sum() / MASK.sum().clamp(min=1), 8),
        (lambda: X[MASK].mean(), 8),
        (lambda: X.masked_select(MASK).mean(), 8),
        (lambda: 2 * F.cross_entropy(X, Y) / 3, 3),
        (lambda: F.cross_entropy(X, Y).float().to("cpu").clone(), 3),
        (lambda: 1 - X.mean(), 12),
        (lambda: -F.l1_loss(X, X + 1) + 0.5, 12),
        (lambda: F.mse_loss(X, X + 1) + 0.1 * X.square().mean(), 12),
        (lambda: F.mse_loss(X, X + 1) + 0.1 * X.square().sum(1).mean(), 4),
        (lambda: sum([X.mean(), X.square().mean()]), 12),
        (lambda: torch.stack([X.mean(), X.square().mean()]).mean(), 24),
        (lambda: torch.stack([X.mean(), X.square().mean()]).sum(), 12),
        (lambda: X.mean().add_(1).mul_(2), 12),
        (lambda: sum(F.mse_loss(row, row + 1) for row in X) / len(X), 12),
        (lambda: torch.stack([F.mse_loss(row, row + 1) for row in X]).mean(), 12),
        (lambda: (X * MASK).sum() / max(1, MASK.sum().item()), 8),
        (lambda: (X * MASK).sum() / max(1, int(MASK.sum())), 8),
        (lambda: F.l1_loss(X[MASK], X[MASK] + 1, reduction="sum") / len(X[MASK]), 8),
        (lambda: F.l1_loss(X[MASK], X[MASK] + 1, reduction="none").mul(2).mean(), 8),
        (lambda: X[:, None].square().sum() / (X.shape[0] * X.shape[1]), 12),
        (lambda: F.mse_loss(X, X + 1, reduction="sum") / X.numel(), 12),
        (lambda: (X * 0).sum() / NONE.sum().clamp(min=1), 0),
        (lambda: (X * 0).sum() / torch.maximum(NONE.sum(), ONE[0]), 0),
        (lambda: (X * 0).sum() / max(1, NONE.sum().item()), 0),
        (lambda: (X * 0).sum() / max(NONE.sum(), 1), 0),
        (lambda: (X * ONLY).sum() / max(1, ONLY.sum()), 1),
    ],
)
def test_what_a_mean_was_divided_by_is_known(compute: Any, weight: float) -> None:
    _, known = noted(compute)

    assert known == (weight,)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: X.sum(),
        lambda: F.cross_entropy(X, Y, reduction="sum"),
        lambda: F.cross_entropy(X, Y, reduction="sum") * 0.5 + 2 * X.sum(),
        lambda: X.sum() / 1000,
        lambda: torch.stack([X.sum(), X.square().sum()]).mean(),
    ],
)
def test_a_sum_stays_a_sum(compute: Any) -> None:
    _, known = noted(compute)

    assert known == (None,)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: F.cross_entropy(X, Y) + X.mean(),  # of targets that count, of elements
        lambda: F.cross_entropy(X, Y) + 0.1 * ONE.square().sum(),  # what does not hang on the batch
        lambda: F.mse_loss(X, X + 1) * X.detach().mean(),
        lambda: F.mse_loss(X, X + 1).sqrt(),
        lambda: X.mean().exp_(),
        lambda: torch.stack([F.cross_entropy(X, Y), X.mean()]).mean(),
        lambda: torch.logsumexp(X, (0, 1)),
        lambda: X.sum() + X.mean(),
        lambda: X.sum() + 1,
        lambda: X.median(),
        lambda: ONE.mean(),
        lambda: F.mse_loss(X, X + 1, size_average=True),
        lambda: sum(F.mse_loss(row, row + 1) for row in X),  # the mean of a sample, added up
        lambda: X.sum() / (MASK.sum().item() + 0.5),  # a number that nobody counted
    ],
)
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_of_anything_else_nobody_knows(compute: Any) -> None:
    assert noted(compute)[1] == ()


@pytest.mark.parametrize(
    ("compute", "kind"),
    [
        (lambda m: (X.sum(1) * 0).index_copy(0, m.nonzero()[:, 0], X[m].sum(1)).mean(), "mean"),
        (lambda m: X.sum(1).index_add_(0, torch.where(m)[0], X[m].sum(1)).mean(), "mean"),
        (lambda m: X.sum(1).masked_scatter(m, X[m].sum(1)).mean(), "mean"),
        (lambda m: (X - X[m].mean(0)).square().mean(), "mean"),
        (lambda m: X[m].max(1).values.mean(), "counted"),
        (lambda m: F.mse_loss(X[m, :2], X[m, :2] + 1), "counted"),
        (lambda m: F.mse_loss(X[m.nonzero().squeeze(1), 0], ONE[0]), "counted"),
        (lambda m: X.index_select(0, torch.where(m)[0]).square().mean(), "counted"),
        (lambda m: F.l1_loss(torch.cat([X[m], X[m.roll(1)]]), ONE), "counted"),
        (lambda m: F.l1_loss(X[m].sum(1).squeeze(), ONE[0]), "counted"),
        (
            lambda m: F.l1_loss(X[:, 0][m].squeeze(), ONE.new_ones(X[:, 0][m].squeeze().shape)),
            "counted",
        ),
        (lambda m: X[m].flatten().square().mean(), "counted"),
        (lambda m: X[m].T.square().mean(), "counted"),
        (lambda m: F.mse_loss(X[m].unbind(1)[0], X[m][:, 1]), "counted"),
        (lambda m: torch.stack([F.mse_loss(row, ONE) for row in X[m]]).mean(), "counted"),
        (lambda m: (X.sum(1) * m).sum() / X[m].shape[0], "counted"),
        (lambda m: X[m].sum() / max(1, len(m.nonzero())), "counted"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_has_one_kind_however_many_samples_a_mask_lets_through(
    compute: Callable[[Tensor], Tensor], kind: str
) -> None:
    masks = [torch.tensor(bits) for bits in product([False, True], repeat=4) if any(bits)]

    kinds = set()
    for mask in masks:
        with Reductions(4) as watch:
            loss = compute(mask)
        weighed = watch.weigh(loss, None)
        kinds.add("mean" if weighed is loss else "sum" if weighed.weight is None else "counted")

    assert kinds == {kind}


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


def masked(pred: Tensor, target: Tensor) -> Tensor:
    counted = target[:, 0] > 2  # of some batches nothing
    return ((pred - target).square().sum(1) * counted).sum() / counted.sum().clamp(min=1)


def masked_in_python(pred: Tensor, target: Tensor) -> Tensor:
    counted = target[:, 0] > 2
    return ((pred - target).square().sum(1) * counted).sum() / max(1, int(counted.sum()))


def sample_by_sample(pred: Tensor, target: Tensor) -> Tensor:
    return torch.stack([F.mse_loss(*pair) for pair in zip(pred, target, strict=True)]).mean()


@pytest.mark.parametrize("criterion", [masked, masked_in_python, sample_by_sample])
def test_a_split_has_one_loss_whatever_the_size_of_its_batches(
    criterion: Callable[..., Tensor],
) -> None:
    inputs, targets = torch.randn(20, 3), torch.randn(20, 2).mul(2)
    targets[:2, 0], targets[2:, 0] = 3, targets[2:, 0].abs()
    targets[4:8, 0] = 0
    process = Supervised(nn.Linear(3, 2), criterion)

    losses = []
    for size in (20, 4, 3):
        batches = list(zip(inputs.split(size), targets.split(size), strict=True))
        losses.append(evaluate(process, batches, split="valid")[0]["valid/loss"])

    assert losses[1:] == pytest.approx([losses[0]] * 2)


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
