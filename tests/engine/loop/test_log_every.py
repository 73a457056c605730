"""`log_every`: of so many steps one is recorded, with its own numbers, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from assay.core.ports import MemoryRecorder
from assay.engine import ByHand, Engine, Process
from assay.engine.loop.engine_state import capture_state
from engine.toys import engine, loader, net, same_bits, supervised


class Logging(Process):
    """A regression that logs something of its own."""

    def __init__(self) -> None:
        self.model = net()
        self.backward = supervised(self.model).backward

    def forward_step(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        inputs, targets = batch
        self.log("aux", inputs.abs().mean())
        return (self.model(inputs) - targets).square().mean(), None


def trained(log_every: int, **given: Any) -> Engine:
    """Four epochs of three steps."""
    runs = engine(Logging(), epochs=4, recorder=MemoryRecorder(), log_every=log_every, **given)
    runs.run()
    return runs


def points(runs: Engine, *names: str) -> list[tuple[str, int, float]]:
    assert isinstance(runs.recorder, MemoryRecorder)
    return [point for point in runs.recorder.points if not names or point[0] in names]


@pytest.mark.parametrize("deferred", [False, True])
def test_the_recorded_steps_have_the_numbers_that_they_have_when_all_are_recorded(
    deferred: bool,
) -> None:
    every, fifth = trained(1, deferred=deferred), trained(5, deferred=deferred)

    kept = [point for point in points(every) if point[1] % 5 == 0 or point[0] == "epoch"]
    assert sorted(points(fifth)) == sorted(kept)
    assert [step for name, step, _ in points(fifth) if name == "train/aux"] == [5, 10]
    assert [(step, value) for name, step, value in points(fifth) if name == "epoch"] == [
        (1, 0),
        (4, 1),
        (7, 2),
        (10, 3),
    ]
    assert same_bits(capture_state(every), capture_state(fifth))


@pytest.mark.parametrize("deferred", [False, True])
def test_with_zero_only_epochs_are_recorded(deferred: bool) -> None:
    assert {name for name, _, _ in points(trained(0, deferred=deferred))} == {"epoch"}


def test_a_loop_by_hand_records_as_seldom() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runs = Engine(
        ByHand(model, optimizer), loader(), epochs=2, recorder=MemoryRecorder(), log_every=2
    )

    for inputs, targets in runs:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        runs.log("loss", loss)
        runs.log("step", float(runs.state.step))

    assert [(step, value) for _, step, value in points(runs, "train/step")] == [
        (2, 1.0),
        (4, 3.0),
        (6, 5.0),
    ]
