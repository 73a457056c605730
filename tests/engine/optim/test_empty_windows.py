"""Windows in which nothing has a weight: no update, counted and said once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, MultiOptimizerStep, OptimizerStep, Supervised
from assay.engine.loop.engine_state import restore
from assay.engine.loop.process import Process
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.losses import WeightedLoss
from engine.toys import kept, same_bits, weights_of

IGNORED = -100
SIZE, WINDOW = 32, 8
SKIPPED = 2
"""Windows of four without a label: the second one and the last one."""


def data() -> TensorDataset:
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (SIZE,))
    labels[WINDOW : 2 * WINDOW] = labels[-WINDOW:] = IGNORED
    return TensorDataset(torch.randn(SIZE, 5), labels)


def without_them() -> TensorDataset:
    inputs, labels = data().tensors
    keep = torch.cat([torch.arange(WINDOW), torch.arange(2 * WINDOW, 3 * WINDOW)])
    return TensorDataset(inputs[keep], labels[keep])


def summed(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return (sum, number of labels) of a batch."""
    inputs, labels = batch
    total = nn.functional.cross_entropy(model(inputs), labels, reduction="sum")
    return total, (labels != IGNORED).sum()


def _pair(model: nn.Module, batch: Any) -> Any:
    return summed(model, batch)


def _pair_of_numbers(model: nn.Module, batch: Any) -> Any:
    total, weight = summed(model, batch)
    return total, float(weight)


def _weighed(model: nn.Module, batch: Any) -> Any:
    total, weight = summed(model, batch)
    return WeightedLoss(total / weight, weight)


def _named(model: nn.Module, batch: Any) -> Any:
    total, weight = summed(model, batch)
    return {"one": (total, weight), "two": (total * 0.5, float(weight))}


LOSSES: dict[str, Callable[[nn.Module, Any], Any]] = {
    "pair": _pair,
    "pair of numbers": _pair_of_numbers,
    "weighed": _weighed,
    "named": _named,
}


class Losing(Process):
    """A step whose loss is of a kind."""

    def __init__(self, model: nn.Module, loss: Any, backward: Any) -> None:
        self.model, self.loss, self.backward = model, loss, backward

    def forward_step(self, batch: Any) -> Any:
        return self.loss(self.model, batch), {}


class Heard:
    """Recorder that keeps losses and warnings."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.losses: list[float] = []

    def tell(self, event: Any) -> None:
        if isinstance(event, Warned):
            self.words.append(event.message)

    def rewind(self, step: int) -> None: ...

    def log(self, points: Any, step: int) -> None:
        self.losses += [value for name, value in points.items() if name == "train/loss"]


def train(
    kind: str, dataset: TensorDataset, *, policy: Any, accumulate: int, deferred: bool, **given: Any
) -> tuple[Engine, Heard]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    backward = OptimizerStep(optimizer, non_finite=policy, **given)
    process: Any = Supervised(model, nn.CrossEntropyLoss(), backward=backward)
    if kind != "criterion":
        process = Losing(model, LOSSES[kind], backward)
    heard: Any = Heard()
    loader = Loader(dataset, batch_size=WINDOW, accumulate=accumulate)
    runs = Engine(process, loader, deferred=deferred, recorder=heard)
    runs.run()
    return runs, heard


@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["", "clip"])
@pytest.mark.parametrize("deferred", [False, True], ids=["read at once", "deferred"])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("kind", ["criterion", *LOSSES])
def test_a_window_without_a_label_changes_nothing_and_is_counted(
    kind: str, policy: str, accumulate: int, deferred: bool, clip_norm: float | None
) -> None:
    given: dict[str, Any] = {"policy": policy, "accumulate": accumulate, "clip_norm": clip_norm}
    whole, heard = train(kind, data(), deferred=deferred, **given)
    plain, _ = train(kind, without_them(), deferred=False, **given)

    assert whole.state.step == SIZE // WINDOW
    assert whole.process.backward.skipped == SKIPPED
    said, at_the_end = heard.words
    assert "no label of its window counts" in said and "no label counted" in at_the_end
    assert same_bits(weights_of(whole.process.model), weights_of(plain.process.model))
    assert math.isnan(whole.state.loss)
    assert len(heard.losses) == 2 and all(map(math.isfinite, heard.losses))


def test_of_losses_by_name_one_without_a_weight_is_left_out_of_the_sum() -> None:
    def losses(model: nn.Module, batch: Any) -> Any:
        total, weight = summed(model, batch)
        return {"labels": (total, weight), "size": model(batch[0]).square().mean()}

    LOSSES["left out"] = losses
    for accumulate in (1, 4):
        for deferred in (False, True):
            runs, heard = train(
                "left out", data(), policy="stop", accumulate=accumulate, deferred=deferred
            )
            assert runs.process.backward.skipped == 0
            assert len(heard.losses) == 4 and all(map(math.isfinite, heard.losses))
            assert heard.words == []


@pytest.mark.parametrize("deferred", [False, True])
def test_a_loss_that_is_nan_with_a_gradient_still_ends_the_run(deferred: bool) -> None:
    broken = data()
    broken.tensors[0][2 * WINDOW] = math.nan

    with pytest.raises(NonFiniteError, match="nan at step 3"):
        train("criterion", broken, policy="stop", accumulate=1, deferred=deferred)


def nan_with_a_gradient(model: nn.Module, batch: Any) -> Tensor:
    """Return a mean over all samples, whose value is nan in the window without labels."""
    inputs, labels = batch
    return model(inputs).square().mean() + (math.nan if int(labels[0]) == IGNORED else 0.0)


LOSSES["nan with a gradient"] = nan_with_a_gradient


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["", "clip"])
def test_a_nan_loss_with_a_finite_gradient_is_no_empty_window(
    clip_norm: float | None, deferred: bool
) -> None:
    given: dict[str, Any] = {"accumulate": 1, "clip_norm": clip_norm, "deferred": deferred}

    with pytest.raises(NonFiniteError, match="nan at step 2"):
        train("nan with a gradient", data(), policy="stop", **given)
    runs, heard = train("nan with a gradient", data(), policy="skip", **given)

    backward = runs.process.backward
    assert (backward.skipped, backward.num_empty) == (2, 0)
    assert not any("label" in word for word in heard.words)


@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["", "clip"])
def test_a_nan_loss_with_a_finite_gradient_ends_a_run_with_the_weights_of_before(
    clip_norm: float | None,
) -> None:
    torch.manual_seed(1)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    process = Losing(model, nan_with_a_gradient, OptimizerStep(optimizer, clip_norm=clip_norm))
    runs = Engine(process, Loader(data(), batch_size=WINDOW), deferred=True)
    weights: list[Any] = []
    runs.on("step_end")(lambda: weights.append(weights_of(model)))

    with pytest.raises(NonFiniteError, match="nan at step 2"):
        runs.run()

    assert same_bits(weights_of(model), weights[0])


@pytest.mark.parametrize("deferred", [False, True])
def test_a_loss_that_is_infinite_with_a_gradient_that_is_not_ends_the_run(deferred: bool) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        total, _ = summed(model, batch)
        return total + (math.inf if int(batch[1][0]) == IGNORED else 0.0)

    LOSSES["infinite"] = loss
    with pytest.raises(NonFiniteError, match="inf at step 2"):
        train("infinite", data(), policy="stop", accumulate=1, deferred=deferred)


@pytest.mark.parametrize("deferred", [False, True])
def test_one_of_several_optimizers_without_a_label_leaves_all_as_they_are(deferred: bool) -> None:
    torch.manual_seed(0)
    models = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(5, 3)})
    steps = {
        name: OptimizerStep(torch.optim.AdamW(part.parameters(), lr=0.01, fused=True))
        for name, part in models.items()
    }

    def losses(model: Any, batch: Any) -> Any:
        inputs, labels = batch
        return {
            "a": nn.functional.cross_entropy(model["a"](inputs), labels),
            "b": model["b"](inputs).square().mean(),
        }

    backward = MultiOptimizerStep(steps)
    before: list[Any] = []
    runs = Engine(
        Losing(models, losses, backward), Loader(data(), batch_size=WINDOW), deferred=deferred
    )
    runs.on("step_end")(lambda: before.append(weights_of(models)))
    runs.run()

    assert backward.num_empty == SKIPPED
    changed = [not same_bits(one, other) for one, other in pairwise(before)]
    assert changed == [False, True, False]


def two_parts(policy: Any, every: dict[str, int], *, deferred: bool, clip: Any) -> Engine:
    """A run of two optimizers, whose batches have a label in the first and third window alone."""
    torch.manual_seed(0)
    models = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(5, 3)})
    steps = {
        name: OptimizerStep(
            torch.optim.AdamW(part.parameters(), lr=0.01, fused=True),
            non_finite=policy,
            clip_norm=clip,
        )
        for name, part in models.items()
    }

    def losses(model: Any, batch: Any) -> Any:
        inputs, labels = batch
        return {
            "a": nn.functional.cross_entropy(model["a"](inputs), labels),
            "b": {"sum": summed(model["b"], batch), "size": model["b"](inputs).square().mean()},
        }

    process = Losing(models, losses, MultiOptimizerStep(steps, every=every))
    loader = Loader(data(), batch_size=WINDOW)
    return Engine(process, loader, epochs=2, deferred=deferred, recorder=MemoryRecorder())


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("every", [{}, {"a": 2}, {"b": 2}, {"a": 2, "b": 2}, {"a": 3}], ids=str)
@pytest.mark.parametrize("policy", ["stop", "skip", "ignore"])
def test_windows_without_a_label_leave_the_same_record_read_at_once_deferred_and_resumed(
    policy: Any, every: dict[str, int], clip: float | None
) -> None:
    def trained(deferred: bool, since: Any = None) -> tuple[Engine, list[Any], list[Any]]:
        runs = two_parts(policy, every, deferred=deferred, clip=clip)
        saved: list[Any] = []
        runs.on("step_end")(lambda: saved.append(kept(runs)))
        if since is not None:
            restore(runs, copy.deepcopy(since))
        runs.run()
        recorder: Any = runs.recorder
        return runs, sorted(recorder.points), saved

    once, expected, saved = trained(False)
    later, points, _ = trained(True)
    assert repr(points) == repr(expected)
    assert later.state.left_out == once.state.left_out
    assert same_bits(kept(later), kept(once))
    due = range(every.get("a", 1), 9, every.get("a", 1))
    assert [step for name, step, _ in expected if name == "train/loss/a"] == [
        step for step in due if step % 2
    ]
    assert {step for name, step, _ in expected if name == "train/loss/b/sum"} <= {1, 3, 5, 7}
    if policy != "ignore":
        assert once.state.left_out == len([step for step in due if not step % 2])

    for step, state in enumerate(saved[:-1], 1):
        for deferred in (False, True):
            resumed, again, _ = trained(deferred, state)
            assert repr(again) == repr([point for point in expected if point[1] > step])
            assert resumed.state.left_out == once.state.left_out
