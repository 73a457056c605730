"""Metrics of one logit a sample and of several labels: those of a count by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.core.errors import InputError
from assay.engine import AUROC, F1, Accuracy, Precision, Recall

SHAPES = {
    "one logit": ((24,), (24,)),
    "one logit in a dim of its own": ((24, 1), (24,)),
    "several labels": ((24, 3), (24, 3)),
    "labels of places": ((6, 3, 4), (6, 3, 4)),
}


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def measured(metric: Any, pred: Tensor, target: Tensor, *, size: int = 5) -> Any:
    """Measure in batches, each of which is a rank of its own."""
    whole = metric()
    for one, other in zip(pred.split(size), target.split(size), strict=True):
        part = metric()
        part.update({"pred": one, "target": other})
        whole.merge(part)
    return whole.value()


def rows_of(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores and targets as they are given, and both as (samples, labels)."""
    shape, other = SHAPES[name]
    pred, target = drawn(shape), (drawn(shape, 1) > 0.3).reshape(other).float()
    flat = [each.reshape(shape) for each in (pred, target)]
    if len(shape) == 1:
        return pred, target, flat[0][:, None], flat[1][:, None]
    return pred, target, *(each.movedim(1, -1).reshape(-1, shape[1]) for each in flat)


@pytest.mark.parametrize("as_probabilities", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_accuracy_precision_recall_and_f1_count_labels_above_a_threshold(
    name: str, as_probabilities: bool
) -> None:
    pred, target, scores, true = rows_of(name)
    threshold = 0.0
    if as_probabilities:
        pred, threshold = pred.sigmoid(), 0.5
    found, true = scores > 0, true > 0
    hits, predicted, there = ((each).sum(0).double() for each in (found & true, found, true))

    assert measured(lambda: Accuracy(threshold=threshold), pred, target) == pytest.approx(
        float((found == true).double().mean())
    )
    for kind, expected in (
        (Precision, hits / predicted),
        (Recall, hits / there),
        (F1, 2 * hits / (predicted + there)),
    ):
        assert measured(lambda k=kind: k(threshold=threshold), pred, target) == pytest.approx(
            float(expected.mean())
        )
        each = measured(lambda k=kind: k(threshold=threshold, average="none"), pred, target)
        assert list(each.values()) == pytest.approx(expected.tolist())


def pairs_won(scores: Tensor, true: Tensor) -> float:
    """The share of pairs in which the true one is higher, equal ones by half."""
    high, low = scores[true], scores[~true]
    won = (high[:, None] > low).double() + (high[:, None] == low).double() / 2
    return float(won.mean())


@pytest.mark.parametrize("name", SHAPES)
def test_an_area_is_the_share_of_pairs_that_are_in_order(name: str) -> None:
    pred, target, scores, true = rows_of(name)
    expected = [pairs_won(scores[:, i], true[:, i] > 0) for i in range(scores.shape[1])]

    assert measured(AUROC, pred, target) == pytest.approx(sum(expected) / len(expected))
    each = measured(lambda: AUROC(average="none"), pred, target)
    assert list(each.values()) == pytest.approx(expected)


def test_an_area_of_classes_is_the_mean_of_each_against_the_others() -> None:
    pred, target = drawn((30, 4)), torch.arange(30) % 4
    target[7] = -100
    kept = target >= 0
    expected = [pairs_won(pred[kept, i], target[kept] == i) for i in range(4)]

    assert measured(AUROC, pred, target) == pytest.approx(sum(expected) / 4)
    named = measured(lambda: AUROC(["a", "b", "c", "d"], average="none"), pred, target)
    assert named == pytest.approx(dict(zip("abcd", expected, strict=True)))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=12))
def test_equal_scores_count_half(pairs: list[tuple[int, bool]]) -> None:
    scores = torch.tensor([float(score) for score, _ in pairs])
    true = torch.tensor([is_true for _, is_true in pairs])
    area = measured(AUROC, scores, true.long())

    if true.all() or not true.any():
        assert math.isnan(area)
    else:
        assert area == pytest.approx(pairs_won(scores, true))


@pytest.mark.parametrize("metric", [lambda: Accuracy(threshold=0.0), lambda: F1(threshold=0.0)])
def test_what_is_ignored_counts_for_nothing_and_a_nan_makes_the_value_nan(metric: Any) -> None:
    pred, target = torch.tensor([1.0, -1.0, math.nan]), torch.tensor([1, 0, -100])
    assert measured(metric, pred, target) == 1.0

    target[2] = 0
    assert math.isnan(measured(metric, pred, target))
    with pytest.raises(InputError, match="1 targets are neither 0 nor 1"):
        measured(metric, torch.zeros(2), torch.tensor([1, 2]))


@pytest.mark.parametrize("kind", [Accuracy, F1])
@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3)])
def test_one_score_a_target_without_a_threshold_is_told_what_to_write(
    kind: Any, shape: tuple[int, ...]
) -> None:
    target = torch.zeros(shape if shape != (4, 1) else (4,)).long()
    with pytest.raises(InputError) as caught:
        kind().update({"pred": torch.zeros(shape), "target": target})

    assert f"{kind.__name__}(threshold=0.0) for logits" in caught.value.fix
