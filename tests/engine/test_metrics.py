"""Accumulators of evaluation, and what can be told about any batch."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.core.errors import InputError
from assay.engine import Accuracy, Mean
from assay.engine.metrics import blame_device, size_of, to_device

# ---------------------------------------------------------------------------------------------------------------- mean


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 100)), min_size=1, max_size=20))
def test_a_mean_is_weighted_by_what_each_number_stands_for(pairs: list[tuple[float, int]]) -> None:
    mean = Mean()
    for value, weight in pairs:
        mean.add(value, weight)

    whole = [value for value, weight in pairs for _ in range(weight)]
    assert mean.value() == pytest.approx(math.fsum(whole) / len(whole), rel=1e-9, abs=1e-6)


def test_a_mean_of_nothing_is_nan_and_reset_forgets() -> None:
    mean = Mean()
    assert math.isnan(mean.value())
    mean.add(3.0)

    mean.reset()

    assert math.isnan(mean.value())


# ------------------------------------------------------------------------------------------------------------ accuracy


def by_counting(scores: Tensor, target: Tensor, top: int, ignored: int) -> float:
    """One sample after the other; of equal scores the first counts as higher."""
    right = kept = 0
    for row, wanted in zip(scores.tolist(), target.tolist(), strict=True):
        if wanted != ignored:
            kept += 1
            right += wanted in sorted(range(len(row)), key=lambda index: -row[index])[:top]
    return right / kept if kept else math.nan


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    classes=st.integers(2, 6),
    top=st.integers(1, 3),
)
def test_accuracy_is_what_counting_gives_however_the_samples_are_batched(
    seed: int, sizes: list[int], classes: int, top: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    size, top = sum(sizes), min(top, classes)
    scores = torch.randn(size, classes, generator=draw)
    target = torch.randint(0, classes, (size,), generator=draw)
    target[torch.rand(size, generator=draw) < 0.2] = -1
    metric = Accuracy(top=top, ignore_index=-1)

    for pred, wanted in zip(scores.split(sizes), target.split(sizes), strict=True):
        metric.update({"pred": pred, "target": wanted})

    assert metric.value() == pytest.approx(by_counting(scores, target, top, -1), nan_ok=True)


def test_accuracy_takes_class_indices_too() -> None:
    metric = Accuracy()

    metric.update({"pred": torch.tensor([0, 1, 2]), "target": torch.tensor([0, 1, 1])})
    metric.update({"pred": torch.tensor([True]), "target": torch.tensor([True])})

    assert metric.value() == 3 / 4


def test_accuracy_counts_pixels_as_it_counts_samples() -> None:
    scores = torch.zeros(2, 3, 4, 4)
    scores[:, 1] = 1.0
    target = torch.zeros(2, 4, 4, dtype=torch.long)
    target[0, :2] = 1
    target[1, 0] = -100

    one, two = Accuracy(), Accuracy(top=2)
    for metric in (one, two):
        metric.update({"pred": scores, "target": target})

    assert one.value() == 8 / 28
    assert two.value() == 1.0


def test_accuracy_of_nothing_is_nan_and_reset_forgets() -> None:
    metric = Accuracy()
    assert math.isnan(metric.value())
    metric.update({"pred": torch.tensor([1]), "target": torch.tensor([1])})
    assert metric.value() == 1.0

    metric.reset()
    metric.update({"pred": torch.tensor([1]), "target": torch.tensor([-100])})

    assert math.isnan(metric.value())


@pytest.mark.parametrize("output", [{"pred": torch.zeros(1, 2)}, (torch.zeros(1, 2), torch.zeros(1)), None])
def test_accuracy_says_what_it_needs_from_a_process(output: Any) -> None:
    with pytest.raises(InputError, match="Accuracy needs `pred` and `target`") as caught:
        Accuracy().update(output)

    assert "forward_step" in caught.value.fix


@pytest.mark.parametrize(
    ("pred", "target"),
    [
        (torch.zeros(4, 3), torch.zeros(5, dtype=torch.long)),
        (torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.long)),
        (torch.zeros(4, 3), torch.zeros(4, 3)),  # targets as probabilities
        (torch.zeros(4), torch.zeros(4)),  # one score a sample
        (torch.zeros(3), torch.zeros((), dtype=torch.long)),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4, dtype=torch.long)),
        (torch.zeros(4, dtype=torch.long), torch.zeros(3, dtype=torch.long)),
    ],
)
def test_accuracy_refuses_what_it_would_have_to_guess(pred: Tensor, target: Tensor) -> None:
    with pytest.raises(InputError, match="Accuracy cannot compare pred") as caught:
        Accuracy().update({"pred": pred, "target": target})

    assert str(tuple(pred.shape)) in caught.value.what and str(tuple(target.shape)) in caught.value.what
    assert "(batch, classes, ...)" in caught.value.fix


@pytest.mark.parametrize(("classes", "top", "needed"), [(3, 4, 4), (1, 1, 2)])
def test_accuracy_needs_more_classes_than_one_and_no_fewer_than_its_top(classes: int, top: int, needed: int) -> None:
    with pytest.raises(InputError, match=f"needs at least {needed} classes; pred has {classes}"):
        Accuracy(top=top).update({"pred": torch.zeros(2, classes), "target": torch.zeros(2, dtype=torch.long)})


def test_accuracy_of_no_class_is_refused() -> None:
    with pytest.raises(InputError, match="top=0"):
        Accuracy(top=0)


# ------------------------------------------------------------------------------------------------------------- batches

Pair = namedtuple("Pair", ["x", "y"])


class Graphs:
    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(7, 2), 7),
        (torch.tensor(1.0), 1),
        ([torch.zeros(7, 2), torch.zeros(3)], 7),
        (("name", torch.zeros(7, 2)), 7),
        (Pair(torch.zeros(7), None), 7),
        ({"x": {"a": torch.zeros(7)}, "y": torch.zeros(3)}, 7),
        ({"temperature": torch.tensor(0.5), "x": torch.zeros(7)}, 7),
        ({"temperature": torch.tensor(0.5)}, 1),
        (np.zeros((7, 2)), 7),
        ((np.float32(0.5), np.zeros(7)), 7),
        (["a", "b", "c"], 3),
        ((["a", "b", "c"], [1, 2, 3]), 3),
        ({"text": ("a", "b")}, 2),
        (Graphs(), 5),
        ({"x": 1, "y": 2}, 0),
        (object(), 0),
        ("text", 0),
        ([], 0),
        (None, 0),
    ],
)
def test_the_size_of_a_batch_is_that_of_what_it_is_made_of(batch: Any, size: int) -> None:
    assert size_of(batch) == size


def test_a_batch_is_moved_and_stays_what_it_is() -> None:
    meta = torch.device("meta")
    batch = Pair({"a": torch.zeros(2), "n": 3}, [(torch.ones(1), "text"), None])

    moved = to_device(batch, meta)

    assert isinstance(moved, Pair)
    assert moved.x["a"].device == meta and moved.x["n"] == 3
    assert isinstance(moved.y, list) and isinstance(moved.y[0], tuple)
    assert moved.y[0][0].device == meta and moved.y[0][1] == "text" and moved.y[1] is None
    assert batch.x["a"].device.type == "cpu"


DEVICES = RuntimeError("Tensor on device cpu is not on the expected device meta!")


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ({"x": [torch.zeros(2)]}, DEVICES),
        ({"x": torch.zeros(2, device="meta")}, RuntimeError("shapes differ")),
        ({"x": torch.zeros(2, device="meta")}, ValueError("device")),
        (object(), DEVICES),
    ],
)
def test_other_errors_are_not_put_down_to_the_device_of_the_batch(batch: Any, error: Exception) -> None:
    blame_device(batch, torch.device("cpu"), error)


def test_a_stray_tensor_anywhere_in_a_batch_is_found() -> None:
    with pytest.raises(InputError, match="The batch is on meta, the model on cpu") as caught:
        blame_device({"x": [torch.zeros(2), (torch.zeros(2, device="meta"),)]}, torch.device("cpu"), DEVICES)

    assert caught.value.__cause__ is DEVICES
