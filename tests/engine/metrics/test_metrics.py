"""Accumulators of evaluation, and what can be told about any batch."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import F1, Accuracy, Adapted, Confusion, Mean, Perplexity, Precision, Recall
from assay.engine.callbacks.evaluate import evaluate
from assay.engine.data.batches import blame_device, size_of, to_device
from assay.engine.loop.process import Process
from assay.engine.metrics.classes import Average
from assay.engine.metrics.metric import Matrix, as_metric, result_parts

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


def test_a_mean_of_a_part_of_the_output_takes_pairs_values_and_means_of_batches() -> None:
    pairs, values, means = Mean(), Mean("score"), Mean("loss")

    for rows in (torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0])):
        pairs.update({"loss": (rows.sum(), torch.tensor(len(rows)))})
        values.update({"score": rows})
        means.update({"loss": rows.mean(), "target": rows})

    assert pairs.value() == values.value() == means.value() == 3.0


def test_a_mean_says_what_it_lacks() -> None:
    with pytest.raises(InputError, match="Mean needs `loss`"):
        Mean().update({"pred": 1})
    with pytest.raises(InputError, match="how many samples a value stands for"):
        Mean().update({"loss": torch.tensor(1.0)})


def test_perplexity_is_that_of_all_tokens_however_they_are_batched() -> None:
    scores, target = (
        torch.randn(7, 5, generator=torch.Generator().manual_seed(0)),
        torch.arange(7) % 5,
    )
    metric = Perplexity()

    for rows, wanted in zip(scores.split([4, 1, 2]), target.split([4, 1, 2]), strict=True):
        metric.update(
            {"loss": (nn.functional.cross_entropy(rows, wanted, reduction="sum"), len(wanted))}
        )

    assert metric.value() == pytest.approx(
        math.exp(nn.functional.cross_entropy(scores, target).item()), rel=1e-6
    )
    metric.reset()
    assert math.isnan(metric.value())
    metric.update({"loss": (torch.tensor(1e6), 1)})
    assert metric.value() == math.inf


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


OF_TORCHMETRICS = {0: (0.378, 0.763, 0.374707, 0.385076), 1: (0.369, 0.753, 0.368242, 0.373876)}
"""By torchmetrics 1.9.0 on the data of `thousand`: top-1, top-5, macro F1, weighted precision."""


def thousand(seed: int) -> tuple[Tensor, Tensor]:
    """Scores of 20 classes for a thousand samples, a little better than chance."""
    draw = torch.Generator().manual_seed(seed)
    scores, target = (
        torch.randn(1000, 20, generator=draw),
        torch.randint(0, 20, (1000,), generator=draw),
    )
    scores[torch.arange(1000), target] += 1.5
    return scores, target


@pytest.mark.row("C71", "E41")
@pytest.mark.parametrize("seed", OF_TORCHMETRICS)
def test_on_random_data_the_numbers_are_those_of_torchmetrics_and_of_sorting(seed: int) -> None:
    scores, target = thousand(seed)
    metrics = [Accuracy(), Accuracy(top=5), F1(), Precision(average="weighted")]

    for start in range(0, 1000, 64):
        for metric in metrics:
            metric.update(
                {"pred": scores[start : start + 64], "target": target[start : start + 64]}
            )

    assert [metric.value() for metric in metrics] == pytest.approx(OF_TORCHMETRICS[seed], abs=1e-6)
    order = np.argsort(-scores.numpy(), axis=1)
    for top, metric in ((1, metrics[0]), (5, metrics[1])):
        assert metric.value() == np.mean(
            [wanted in best for wanted, best in zip(target, order[:, :top], strict=True)]
        )


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


@pytest.mark.parametrize("make", [Accuracy, lambda: Accuracy(top=2), Confusion, F1])
def test_a_sample_whose_scores_are_nan_has_no_class(make: Any) -> None:
    metric, other = make(), make()
    scores = torch.eye(3)
    metric.update({"pred": scores, "target": torch.arange(3)})
    assert number_of(metric) == 1
    broken = scores.clone()
    broken[1, 2] = float("nan")
    other.update({"pred": broken, "target": torch.tensor([0, -100, 2])})
    assert number_of(other) == 1
    other.update({"pred": broken, "target": torch.arange(3)})
    metric.merge(other)
    assert math.isnan(number_of(metric))
    if isinstance(metric, Confusion):
        assert metric.matrix().sum() == 7
    metric.reset()
    metric.update({"pred": scores, "target": torch.arange(3)})
    assert number_of(metric) == 1


def number_of(metric: Any) -> float:
    value = metric.value()
    return float(value[""] if isinstance(value, dict) else value)


def test_accuracy_of_nothing_is_nan_and_reset_forgets() -> None:
    metric = Accuracy()
    assert math.isnan(metric.value())
    metric.update({"pred": torch.tensor([1]), "target": torch.tensor([1])})
    assert metric.value() == 1.0

    metric.reset()
    metric.update({"pred": torch.tensor([1]), "target": torch.tensor([-100])})

    assert math.isnan(metric.value())


@pytest.mark.parametrize("output", [{"pred": torch.zeros(1, 2)}, (torch.zeros(1, 2),), None])
def test_accuracy_says_what_it_needs_from_a_process(output: Any) -> None:
    with pytest.raises(InputError, match="Accuracy needs `pred` and `target`") as caught:
        Accuracy().update(output)

    assert "forward_step" in caught.value.fix


@pytest.mark.parametrize(
    ("pred", "target"),
    [
        (torch.zeros(4, 3), torch.zeros(5, dtype=torch.long)),
        (torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.long)),
        (torch.zeros(3), torch.zeros((), dtype=torch.long)),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4, dtype=torch.long)),
        (torch.zeros(4, dtype=torch.long), torch.zeros(3, dtype=torch.long)),
    ],
)
def test_accuracy_refuses_what_it_would_have_to_guess(pred: Tensor, target: Tensor) -> None:
    with pytest.raises(InputError, match="Accuracy cannot compare pred") as caught:
        Accuracy().update({"pred": pred, "target": target})

    assert (
        str(tuple(pred.shape)) in caught.value.what
        and str(tuple(target.shape)) in caught.value.what
    )
    assert "(batch, classes, ...)" in caught.value.fix


@pytest.mark.parametrize(("classes", "top", "needed"), [(3, 4, 4), (1, 1, 2)])
def test_accuracy_needs_more_classes_than_one_and_no_fewer_than_its_top(
    classes: int, top: int, needed: int
) -> None:
    with pytest.raises(InputError, match=f"needs at least {needed} classes; pred has {classes}"):
        Accuracy(top=top).update(
            {"pred": torch.zeros(2, classes), "target": torch.zeros(2, dtype=torch.long)}
        )


def test_accuracy_of_no_class_is_refused() -> None:
    with pytest.raises(InputError, match="top=0"):
        Accuracy(top=0)


# ------------------------------------------------------------------------------------------- precision, recall and f1


def counted(
    pairs: list[tuple[int, int]], classes: int, score: str
) -> tuple[list[float], list[bool]]:
    """A score of each class by its definition, and whether the class occurred."""
    scores, occurred = [], []
    for each in range(classes):
        right = sum(true == pred == each for true, pred in pairs)
        wrongly = sum(pred == each != true for true, pred in pairs)
        missed = sum(true == each != pred for true, pred in pairs)
        precision = right / (right + wrongly) if right + wrongly else 0.0
        recall = right / (right + missed) if right + missed else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        scores.append({"precision": precision, "recall": recall, "f1": f1}[score])
        occurred.append(right + wrongly + missed > 0)
    return scores, occurred


SCORES = {"precision": Precision, "recall": Recall, "f1": F1}


@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    classes=st.integers(2, 5),
    score=st.sampled_from(sorted(SCORES)),
)
def test_scores_are_what_their_definitions_give_however_the_samples_are_batched(
    seed: int, sizes: list[int], classes: int, score: str
) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(sum(sizes), classes, generator=draw)
    target = torch.randint(-1, classes, (sum(sizes),), generator=draw)
    metrics = {
        average: SCORES[score](average=average, ignore_index=-1) for average in get_args(Average)
    }

    for rows, wanted in zip(scores.split(sizes), target.split(sizes), strict=True):
        for metric in metrics.values():
            metric.update({"pred": rows, "target": wanted})

    pairs = [
        (true, pred)
        for true, pred in zip(target.tolist(), scores.argmax(1).tolist(), strict=True)
        if true != -1
    ]
    each, occurred = counted(pairs, classes, score)
    support = [sum(true == one for true, _ in pairs) for one in range(classes)]
    seen = [value for value, is_there in zip(each, occurred, strict=True) if is_there]
    right = sum(true == pred for true, pred in pairs)
    weighted = sum(value * count for value, count in zip(each, support, strict=True))
    close = lambda value: pytest.approx(value, nan_ok=True)  # noqa: E731
    assert metrics["none"].value() == {
        str(i): close(value if occurred[i] else math.nan) for i, value in enumerate(each)
    }
    assert metrics["macro"].value() == close(sum(seen) / len(seen) if seen else math.nan)
    assert metrics["micro"].value() == close(right / len(pairs) if pairs else math.nan)
    assert metrics["weighted"].value() == close(weighted / len(pairs) if pairs else math.nan)


def test_a_class_left_out_of_the_average_still_costs_the_others_their_errors() -> None:
    output = {"pred": torch.tensor([0, 1, 1, 0, 2]), "target": torch.tensor([0, 1, 0, 1, 2])}
    names = ["outside", "name", "number"]
    micro = F1(names, average="micro", without=["outside"])
    each = F1(names, average="none", without=[0])

    for metric in (micro, each):
        metric.update(output)

    assert each.value() == {"name": 0.5, "number": 1.0}
    assert micro.value() == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))


def test_a_confusion_matrix_has_the_truth_in_its_rows_and_is_one_number_and_a_table() -> None:
    metric = Confusion(["cat", "dog"])
    assert metric.matrix().tolist() == [[0, 0], [0, 0]]
    assert metric.value() == {"": pytest.approx(math.nan, nan_ok=True)}

    metric.update(
        {"pred": torch.tensor([[0, 1], [1, 1]]), "target": torch.tensor([[0, 0], [1, -100]])}
    )
    metric.update({"pred": torch.tensor([1]), "target": torch.tensor([0])})

    assert metric.matrix().tolist() == [[1, 2], [0, 1]]
    parts = result_parts("valid/conf", metric.value())
    assert parts["valid/conf"] == 0.5
    assert parts["valid/conf/matrix"].rows() == (
        ["true", "cat", "dog"],
        [["cat", 1, 2], ["dog", 0, 1]],
    )
    metric.reset()
    assert metric.value().keys() == {""}


def test_the_picture_of_a_matrix_shows_the_shares_of_each_row() -> None:
    picture = Matrix(torch.tensor([[3, 1], [0, 0]])).picture()

    assert picture.shape == (320, 320)
    assert picture[::160, ::160].tolist() == [[0.25, 0.75], [1.0, 1.0]]


def test_yes_and_no_are_two_classes() -> None:
    recall = Recall(average="none")

    recall.update(
        {"pred": torch.tensor([True, False, True]), "target": torch.tensor([True, True, False])}
    )

    assert recall.value() == {"0": 0.0, "1": 0.5}


@pytest.mark.parametrize("make", [Accuracy, Confusion, F1, Precision, Recall, Perplexity, Mean])
def test_what_two_of_a_kind_have_counted_can_be_put_together(make: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    outputs = [
        {
            "pred": torch.randn(n, 3, generator=draw),
            "target": torch.randint(0, 3, (n,), generator=draw),
            "loss": loss,
        }
        for n, loss in [(4, (5.0, 4)), (1, (2.0, 1)), (3, (1.0, 3))]
    ]
    whole, first, second, idle = make(), make(), make(), make()

    for output in outputs:
        whole.update(output)
    first.update(outputs[0]), second.update(outputs[1]), second.update(outputs[2])
    first.merge(second), first.merge(idle)
    idle.merge(second)

    for merged, alone in ((first, whole), (idle, second)):
        assert comparable(merged) == pytest.approx(comparable(alone))


def comparable(metric: Any) -> list[float]:
    """All numbers of a metric, those of a matrix included."""
    parts = result_parts("", metric.value()).values()
    return [
        number
        for part in parts
        for number in (part.values.flatten().tolist() if isinstance(part, Matrix) else [part])
    ]


@pytest.mark.parametrize("make", [Accuracy, Confusion, F1])
def test_counts_stay_on_the_device_until_they_are_asked_for(make: Any) -> None:
    """On the meta device nothing can be read at all."""
    metric = make()

    metric.update(
        {"pred": torch.zeros(2, 3, device="meta"), "target": torch.zeros(2, device="meta").long()}
    )

    with pytest.raises((NotImplementedError, RuntimeError)):
        metric.value()


def test_sums_stay_on_the_device_until_they_are_asked_for() -> None:
    metric = Mean()

    metric.update({"loss": (torch.zeros((), device="meta"), torch.zeros((), device="meta"))})
    metric.update({"loss": torch.zeros((), device="meta"), "target": torch.zeros(4)})

    assert isinstance(metric.total, Tensor) and metric.total.dtype == torch.float64


@pytest.mark.parametrize(
    ("act", "said", "fix"),
    [
        (
            lambda: F1().update({"pred": torch.tensor([1]), "target": torch.tensor([1])}),
            "How many classes",
            "classes",
        ),
        (
            lambda: F1().update({"target": torch.tensor([1])}),
            "F1 needs `pred` and `target`",
            "forward_step",
        ),
        (
            lambda: F1().update({"pred": torch.zeros(2, 3), "target": torch.zeros(3)}),
            "F1 cannot compare",
            "indices",
        ),
        (lambda: F1(average="makro"), "average is 'makro'", "macro"),
        (lambda: F1(["cat", "dog"], without=["dgo"]), "There is no class 'dgo'", "dog"),
        (lambda: F1(1), "at least 2 classes", ""),
        (
            lambda: F1(4).update({"pred": torch.zeros(2, 3), "target": torch.zeros(2).long()}),
            "There are 3 classes in pred, and 4",
            "",
        ),
    ],
)
def test_scores_say_what_is_wrong(act: Any, said: str, fix: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        act()

    assert fix in caught.value.fix


def test_accuracy_counts_no_target_as_an_error_that_only_the_criterion_ignores() -> None:
    for pred in (torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)):
        metric = Accuracy()
        metric.update({"pred": pred, "target": torch.tensor([0, -1, 2, -1])})
        with pytest.raises(InputError, match="2 targets are ") as caught:
            metric.value()
        assert "`ignore_index`, here -100" in caught.value.fix

        told = Accuracy(ignore_index=-1)
        told.update({"pred": pred, "target": torch.tensor([0, -1, 2, -1])})
        assert told.value() in (0.0, 0.5, 1.0)

    other = Accuracy()
    other.merge(metric)
    with pytest.raises(InputError, match="2 targets are below 0"):
        other.value()


@pytest.mark.parametrize("metric", [Accuracy(), F1(), Confusion()])
def test_a_target_of_bytes_is_a_class_though_it_is_what_is_ignored_modulo_256(metric: Any) -> None:
    pred = torch.eye(200)[[156, 156, 0]]

    metric.update({"pred": pred, "target": torch.tensor([156, 3, 0], dtype=torch.uint8)})

    counts = metric.confusion.matrix() if isinstance(metric, F1) else None
    counts = metric.matrix() if isinstance(metric, Confusion) else counts
    found = float(metric.value()) if counts is None else float(counts.trace() / counts.sum())
    assert found == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", [Accuracy(ignore_index=-1), F1(ignore_index=-1), Confusion()])
def test_a_fraction_is_no_class(metric: Any) -> None:
    metric.update({"pred": torch.eye(2), "target": torch.tensor([0.0, 1.0])})
    metric.update({"pred": torch.eye(2), "target": torch.tensor([0.7, 1.0])})

    with pytest.raises(InputError, match=r"1 targets.* are not among the classes 0 to 1"):
        metric.value()


def test_a_class_that_does_not_exist_is_told_when_the_value_is_asked_for() -> None:
    metric = F1()

    metric.update({"pred": torch.zeros(3, 2), "target": torch.tensor([0, 2, -1])})

    with pytest.raises(
        InputError, match="2 targets or predictions are not among the classes 0 to 1"
    ):
        metric.value()


# ------------------------------------------------------------------------------------------------ of other libraries


class Theirs:
    """A metric as torchmetrics has them."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.moved: list[str] = []
        self.right, self.count = torch.zeros(2), 0

    def to(self, device: torch.device) -> Theirs:
        self.moved.append(str(device))
        return self

    def update(self, pred: Tensor, target: Tensor) -> None:
        if pred.device.type == "cpu":
            self.right += torch.stack([(pred == target).sum(), (pred != target).sum()])
            self.count += len(target)

    def compute(self) -> Any:
        return self.right / self.count


def test_a_metric_of_another_library_is_taken_as_it_is() -> None:
    metric = as_metric("acc", Theirs())

    metric.update({"pred": torch.tensor([1, 2, 3]), "target": torch.tensor([1, 2, 0])})
    metric.update({"pred": torch.tensor([1]), "target": torch.tensor([1])})

    assert metric.value() == {"0": 0.75, "1": 0.25}
    assert result_parts("valid/acc", metric.value()) == {"valid/acc/0": 0.75, "valid/acc/1": 0.25}


class TheirMatrix(Theirs):
    def compute(self) -> Any:
        return {"counts": torch.tensor([[5, 1], [0, 4]]), "total": torch.tensor([[10.0]])}


class Answers(Process):
    def forward_step(self, batch: Tensor) -> tuple[None, dict[str, Tensor]]:
        return None, {"pred": batch, "target": batch}


def test_a_matrix_of_another_library_is_a_file_and_no_metric_of_each_cell() -> None:
    recorder = MemoryRecorder()
    process = Answers()
    process.model, process.metrics = nn.Identity(), {"confusion": TheirMatrix()}

    results, _ = evaluate(process, [torch.zeros(3)], split="valid", step=7, recorder=recorder)

    assert results == {"valid/confusion/total": 10.0}
    assert recorder.media["valid/confusion/counts.csv"] == [[5, 1], [0, 4]]
    assert recorder.media["valid/confusion/counts.png"].shape == (320, 320)


def test_a_metric_of_another_library_follows_the_output_to_its_device_and_says_what_it_lacks() -> (
    None
):
    theirs = Theirs()
    metric = Adapted(theirs)

    metric.update({"pred": torch.zeros(1, device="meta"), "target": torch.zeros(1, device="meta")})

    assert theirs.moved == ["meta"]
    with pytest.raises(InputError, match="Theirs needs `pred` and `target`"):
        metric.update({"pred": torch.zeros(1)})


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (0.5, {"m": 0.5}),
        (torch.tensor(0.5), {"m": 0.5}),
        (torch.tensor([0.5]), {"m": 0.5}),
        (np.array([1, 2]), {"m/0": 1.0, "m/1": 2.0}),
        ({"a": torch.tensor(1), "b": (2, {"c": 3})}, {"m/a": 1.0, "m/b/0": 2.0, "m/b/1/c": 3.0}),
    ],
)
def test_whatever_a_metric_gives_becomes_numbers_by_name(
    value: Any, named: dict[str, float]
) -> None:
    assert result_parts("m", value) == named


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(InputError, match=r"metrics.acc is a Linear, which is no metric") as caught:
        as_metric("acc", nn.Linear(1, 1))

    assert "reset(), update(output) and value()" in caught.value.fix


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


@pytest.mark.row("B23")
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
def test_other_errors_are_not_put_down_to_the_device_of_the_batch(
    batch: Any, error: Exception
) -> None:
    blame_device(batch, torch.device("cpu"), error)


def test_a_stray_tensor_anywhere_in_a_batch_is_found() -> None:
    with pytest.raises(InputError, match="The batch is on meta, the model on cpu") as caught:
        blame_device(
            {"x": [torch.zeros(2), (torch.zeros(2, device="meta"),)]}, torch.device("cpu"), DEVICES
        )

    assert caught.value.__cause__ is DEVICES
