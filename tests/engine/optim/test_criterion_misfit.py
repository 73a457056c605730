"""Criteria that torch refuses to compute: both sides, samples and likely mistake are named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.engine.optim.criterion import CriterionError

HALVES = torch.full((4,), 0.5)
CLASSES = torch.tensor([0, 1, 2, 1])
OUTSIDE = torch.tensor([0, 3, 2, 5])


def trained(model: nn.Module, criterion: nn.Module, inputs: Tensor, target: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = Loader(list(zip(inputs, target, strict=True)), batch_size=len(target), shuffle=False)
    Engine(Supervised(model, criterion, backward=OptimizerStep(optimizer)), batches, steps=1).run()


@pytest.mark.parametrize(
    ("criterion", "target", "said"),
    [
        (nn.CrossEntropyLoss(), CLASSES[:, None], "`target.squeeze(1)`, as [4]"),
        (nn.CrossEntropyLoss(), nn.functional.one_hot(CLASSES), "`target.argmax(1)`"),
        (nn.CrossEntropyLoss(), CLASSES.float(), "`target.long()`"),
        (nn.CrossEntropyLoss(), CLASSES.int(), "`target.long()`"),
        (nn.CrossEntropyLoss(), OUTSIDE, "Give the model 6 outputs, or targets from 0 to 2"),
        (nn.CrossEntropyLoss(), CLASSES + 1, "`target - 1`"),
        (nn.CrossEntropyLoss(), CLASSES - 1, "ignore_index = -1"),
        (nn.NLLLoss(), OUTSIDE, "Give the model 6 outputs"),
        (nn.CrossEntropyLoss(), CLASSES[:, None, None], "Give a target of [4]"),
    ],
)
def test_the_likely_mistake_is_told(criterion: nn.Module, target: Tensor, said: str) -> None:
    with pytest.raises(CriterionError) as caught:
        trained(nn.Linear(5, 3), criterion, torch.randn(4, 5), target)

    assert caught.value.what.startswith(type(criterion).__name__)
    assert "pred float32 [4, 3], target " in caught.value.where
    assert said in caught.value.fix


@pytest.mark.parametrize(
    ("criterion", "pred", "target", "said"),
    [
        (
            nn.CrossEntropyLoss(),
            torch.rand(4, 7, 3),
            torch.zeros(4, 7).long(),
            "`pred.movedim(-1, 1)`",
        ),
        (
            nn.CrossEntropyLoss(),
            torch.rand(28, 3),
            torch.zeros(4).long(),
            "28 rows are not 4 targets",
        ),
        (nn.BCEWithLogitsLoss(), torch.rand(4, 1), HALVES, "`target.reshape([4, 1])`"),
        (nn.BCELoss(), torch.rand(4), CLASSES, "`target.to(torch.float32)`"),
        (nn.MSELoss(), torch.rand(4, 3), CLASSES, "[3] is not one number; for the number of a"),
        (nn.MSELoss(), torch.rand(4, 3), torch.rand(4, 2), "shape a sample: [3] is not [2]."),
        (nn.L1Loss(), torch.rand(4, 3), torch.zeros(4, 2).long(), "[3] is not [2]."),
        (
            nn.CrossEntropyLoss(weight=torch.tensor([1, 9, 1])),
            torch.rand(4, 3),
            CLASSES,
            "weight = [1.0, 9.0, 1.0]",
        ),
        (
            nn.NLLLoss(weight=torch.ones(2)),
            torch.rand(4, 3),
            CLASSES,
            "a weight for each class: 3, not 2",
        ),
        (nn.BCELoss(), torch.rand(4), CLASSES.float(), "Give targets between 0 and 1."),
    ],
)
def test_what_a_model_gives_is_compared_with_what_the_criterion_takes(
    criterion: nn.Module, pred: Tensor, target: Tensor, said: str
) -> None:
    process = Supervised(nn.Identity(), criterion)

    with pytest.raises(CriterionError) as caught:
        process.validation_step((pred, target))

    assert said in caught.value.fix


def test_the_samples_that_are_at_fault_are_told_by_their_index_in_the_data_set() -> None:
    samples = [(torch.randn(5), torch.tensor(0)) for _ in range(6)]
    samples[4] = (torch.randn(5), torch.tensor(3))
    model = nn.Linear(5, 3)
    process = Supervised(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))

    with pytest.raises(CriterionError) as caught:
        Engine(process, Loader(samples, batch_size=3, shuffle=False)).run()

    assert caught.value.rows == (1,)
    assert caught.value.__notes__ == ["It is about sample 4 of data.train."]


@pytest.mark.parametrize(
    ("inputs", "target", "odd"),
    [
        (
            torch.randn(4, 5),
            torch.randn(4, 3).double(),
            "float64 [4, 3]",
        ),  # fails in the backward pass
        (torch.randn(4, 5), torch.ones(4, 3).long(), "int64 [4, 3]"),
        (torch.randn(4, 5).double(), torch.randn(4, 3), "float64 [4, 5]"),  # in the model
    ],
)
def test_the_part_of_a_batch_that_has_another_dtype_than_the_weights_is_told(
    inputs: Tensor, target: Tensor, odd: str
) -> None:
    with pytest.raises(InputError) as caught:
        trained(nn.Linear(5, 3), nn.HuberLoss(), inputs, target)

    assert odd in caught.value.where and "float32" in caught.value.fix


def test_an_error_in_the_users_own_criterion_stays_as_it_is() -> None:
    class Own(nn.Module):
        def forward(self, pred: Tensor, target: Tensor) -> Tensor:
            return nn.functional.cross_entropy(pred, target)

    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        trained(nn.Linear(5, 3), Own(), torch.randn(4, 5), OUTSIDE)


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.SmoothL1Loss(), nn.functional.l1_loss])
@pytest.mark.parametrize("shapes", [((4, 1), (4,)), ((4,), (4, 1)), ((4, 1, 3), (4, 3))])
def test_a_criterion_that_would_compare_each_with_each_is_refused_before_the_first_step(
    criterion: nn.Module, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    class Model(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).expand(4, 3).contiguous()[:, : size // 4].reshape(shape)

    shape, other = shapes
    size = torch.Size(shape).numel()
    model = Model(5, 1)
    before = model.weight.detach().clone()

    with pytest.raises(CriterionError, match="would compare each of") as caught:
        trained(model, criterion, torch.randn(4, 5), torch.randn(other))

    assert f"target.reshape({list(shape)})" in caught.value.fix
    assert torch.equal(model.weight, before)
