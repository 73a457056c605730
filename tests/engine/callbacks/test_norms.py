"""Norms by module: of the gradients that the optimizer got and the weights that came of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Loader, Norms, OptimizerStep, Supervised
from engine.toys import engine, loader, net, points


def normed(
    norms: Norms, *, clip_norm: float | None = None, accumulate: int = 1, **given: Any
) -> Any:
    model, recorder = net(dtype=torch.float64), MemoryRecorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = Loader(points(dtype=torch.float64), batch_size=8, accumulate=accumulate)
    process = Supervised(
        model, nn.MSELoss(), backward=OptimizerStep(optimizer, clip_norm=clip_norm)
    )
    runs = engine(process, train, recorder=recorder, **given)
    runs.bus.extend(norms.handlers())
    return runs, recorder


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_they_are_those_of_the_update(clip_norm: float | None, accumulate: int) -> None:
    runs, recorder = normed(Norms("1 step"), clip_norm=clip_norm, accumulate=accumulate)
    model = runs.process.model
    before: list[dict[str, Any]] = [{k: w.detach().clone() for k, w in model.named_parameters()}]
    runs.on("step_end")(
        lambda: before.append({k: w.detach().clone() for k, w in model.named_parameters()})
    )

    runs.run()

    for module in ("0", "2"):
        names = [f"{module}.weight", f"{module}.bias"]
        # Plain gradient descent: the gradient is the difference by the rate.
        grads = [
            float(torch.cat([((a[n] - b[n]) / 0.1).flatten() for n in names]).norm())
            for a, b in itertools.pairwise(before)
        ]
        weights = [
            float(torch.cat([each[n].flatten() for n in names]).norm()) for each in before[1:]
        ]
        assert [value for _, value in recorder.curve(f"grad_norm/{module}")] == pytest.approx(grads)
        assert [value for _, value in recorder.curve(f"weight_norm/{module}")] == pytest.approx(
            weights
        )
    squares = [recorder.curve("grad_norm/0"), recorder.curve("grad_norm/2")]
    whole = [(a[1] ** 2 + b[1] ** 2) ** 0.5 for a, b in zip(*squares, strict=True)]
    if clip_norm is not None:
        assert whole == pytest.approx(
            [min(clip_norm, norm) for _, norm in recorder.curve("train/grad_norm")], rel=1e-4
        )


def test_they_are_recorded_at_their_period_only() -> None:
    runs, recorder = normed(Norms("2 steps"))

    runs.run()

    assert [step for step, _ in recorder.curve("grad_norm/0")] == [2, 4, 6]
    assert not runs.process.backward.optimizer._optimizer_step_pre_hooks


def test_modules_can_be_taken_together_and_what_has_no_module_is_the_models() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.body = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 2)})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body["b"](self.body["a"](x)) * self.scale  # type: ignore[no-any-return]

    for depth, names in {None: {"model", "body.a", "body.b"}, 1: {"model", "body"}}.items():
        recorder = MemoryRecorder()
        model = Nested()
        runs = Engine(
            Supervised(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)),
            loader(),
            recorder=recorder,
        )
        runs.bus.extend(Norms("1 step", depth=depth).handlers())
        runs.run()
        there = {
            name.partition("/")[2]
            for name, _, _ in recorder.points
            if name.startswith("grad_norm/")
        }
        assert there == names


def test_frozen_parts_have_no_gradient_norm_but_one_of_weights() -> None:
    runs, recorder = normed(Norms("1 step"))
    runs.process.model[0].requires_grad_(False)

    runs.run()

    assert not recorder.curve("grad_norm/0")
    assert len(recorder.curve("weight_norm/0")) == len(recorder.curve("grad_norm/2")) == 6


def test_never_is_nobody_listening_and_epochs_are_refused() -> None:
    assert Norms("never").handlers() == []
    with pytest.raises(InputError, match="here steps are counted"):
        Norms("1 epoch")
    with pytest.raises(InputError, match="depth is 0"):
        Norms(depth=0)
