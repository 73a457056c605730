"""Weights of losses: known by class, or said by the user, or refused where they would add up.

Every criterion of torch is tried in parts in `parallel/test_criteria.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from assay.core.errors import InputError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, Supervised, evaluate
from assay.engine.optim.denominators import weigh_loss
from assay.engine.optim.losses import WeightedLoss
from engine.toys import net, points, same_bits, weights_of

SIZE = 20


class Halved(nn.MSELoss):
    """A class that inherits what it is called with, and computes something of its own."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target)[None].sqrt().sum()


class Renamed(nn.MSELoss):
    """A class that only sets options."""

    def __init__(self) -> None:
        super().__init__(reduction="mean")


class Mine(nn.Module):
    """A criterion of a user's own, with or without an attribute `reduction`."""

    def __init__(self, reduction: Any = None) -> None:
        super().__init__()
        if reduction is not None:
            self.reduction = reduction

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        losses = (pred - target).abs().pow(1.5).sum(1)
        return losses.sum() if getattr(self, "reduction", "") == "sum" else losses.mean()


def paired(pred: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    weights = target.abs()
    return ((pred - target).square() * weights).sum(), weights.sum()


def masked(pred: Tensor, target: Tensor) -> Tensor:
    total, weight = paired(pred, target)
    return total / weight


def by_name(pred: Tensor, target: Tensor) -> Any:
    return {"pairs": paired(pred, target), "again": paired(pred, target)}


KNOWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "a class": (nn.MSELoss(), {}),
    "a class that sums": (nn.MSELoss(reduction="sum"), {}),
    "a subclass with the same forward": (Renamed(), {}),
    "a function": (F.mse_loss, {}),
    "a function with settings": (partial(F.huber_loss, delta=0.3), {}),
    "a function that sums": (partial(F.l1_loss, reduction="sum"), {}),
    "a pair": (paired, {}),
    "pairs by name": (by_name, {}),
    "an attribute that says mean": (Mine("mean"), {}),
    "an attribute that says sum": (Mine("sum"), {}),
    "mean as an argument": (Mine(), {"reduction": "mean"}),
    "sum as an argument": (Mine("sum"), {"reduction": "sum"}),
}
UNKNOWN: dict[str, Any] = {
    "a function of one's own": lambda p, t: (p - t).square().mean(),
    "a criterion of torch times a number": lambda p, t: 0.3 * F.mse_loss(p, t),
    "a mean over what a mask chooses": masked,
    "a module without a word": Mine(),
    "a subclass with another forward": Halved(),
    "losses by name without a word": lambda p, t: {"one": F.mse_loss(p, t)},
}


def trained(
    criterion: Any, parts: int, *, handlers: Any = (), **given: Any
) -> tuple[dict[str, Any], MemoryRecorder]:
    """Weights and curves of two steps, of 12 and 8 samples, in double precision."""
    model, recorder = net(dtype=torch.float64), MemoryRecorder()
    process = Supervised(model, criterion, torch.optim.SGD(model.parameters(), lr=0.005), **given)
    data = points(SIZE, dtype=torch.float64)
    loader = Loader(data, batch_size=12, accumulate=parts)
    Engine(process, loader, recorder=recorder, handlers=handlers).run()
    return weights_of(model), recorder


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("name", KNOWN)
def test_a_loss_whose_weight_is_known_counts_in_parts_as_in_one_batch(
    name: str, parts: int
) -> None:
    criterion, said = KNOWN[name]
    whole, expected = trained(criterion, 1, **said)
    found, recorder = trained(criterion, parts, **said)

    for key, weight in whole.items():
        torch.testing.assert_close(found[key], weight, rtol=1e-10, atol=1e-12)
    assert [value for *_, value in recorder.points] == pytest.approx(
        [value for *_, value in expected.points], rel=1e-10
    )


@pytest.mark.parametrize("name", UNKNOWN)
def test_any_other_is_refused_in_parts_before_a_weight_changes_and_trains_whole(name: str) -> None:
    trained(UNKNOWN[name], 1)

    with pytest.raises(InputError, match="divides its loss by is unknown") as caught:
        trained(UNKNOWN[name], 3)

    assert "(sum, weight)" in caught.value.fix and 'reduction = "mean"' in caught.value.fix
    trained(UNKNOWN[name], 3, reduction="mean")


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_what_an_evaluation_cannot_weigh_it_says_once(name: str) -> None:
    criterion, said = KNOWN.get(name, (UNKNOWN.get(name), {}))
    process, recorder = Supervised(net(), criterion, **said), MemoryRecorder()
    if "by name" in name:
        return  # an evaluation has one loss

    losses = [
        evaluate(process, Loader(points(SIZE), batch_size=size), split="valid", recorder=recorder)[
            0
        ]
        for size in (SIZE, 8, 8)
    ]

    told = [fact.message for fact in recorder.facts if isinstance(fact, Warned)]
    assert len(told) == (name in UNKNOWN)
    if name in KNOWN:
        assert losses[1]["valid/loss"] == pytest.approx(losses[0]["valid/loss"], rel=1e-5)
    else:
        assert "valid/loss is the mean over the samples" in told[0]


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
    criterion = nn.CrossEntropyLoss(torch.full((3,), 2.0).double(), label_smoothing=0.1)
    pairs = []
    for rows, part in zip(scores.split([len(part) for part in parts]), parts, strict=True):
        args = rows, torch.tensor(part)
        weighed = weigh_loss(criterion(*args), criterion, args, {}, None)
        pairs.append((weighed.share(len(target)), weighed.weight))

    total, weight = (torch.stack([pair[i] for pair in pairs]).sum() for i in (0, 1))

    expected = criterion(scores, target)
    torch.testing.assert_close(total * len(target) / weight, expected, equal_nan=True)


def test_a_mean_over_nothing_is_a_sum_of_nothing_and_gives_no_gradient() -> None:
    scores = torch.randn(4, 3, requires_grad=True)
    for how in ({}, {"label_smoothing": 0.1}, {"weight": torch.ones(3)}):
        criterion, args = nn.CrossEntropyLoss(**how), (scores, torch.full((4,), -100))
        loss = criterion(*args)
        weighed = weigh_loss(loss, criterion, args, {}, None)
        assert loss.isnan() and isinstance(weighed, WeightedLoss)

        (gradient,) = torch.autograd.grad(weighed.share(4), scores)

        assert float(weighed.weight) == weighed.share(4).item() == 0.0
        assert gradient.eq(0).all()


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
    kinds: list[Callable[..., Any]] = [Supervised, Plain]
    for kind, model in zip(kinds, models, strict=True):
        process = kind(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.05))
        Engine(process, Loader(data, batch_size=9, micro_batch_size=3), epochs=3).run()

    assert same_bits(weights_of(models[0]), weights_of(models[1]))
