"""ReduceLROnPlateau in a run: it lowers the rate as it does in a loop by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.engine import Engine, Evaluate, Loader, MultiOptimizerStep, OptimizerStep, Supervised
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.optim.schedules import TorchSchedule
from engine.toys import net, points

STEPS, EVERY = 24, 2


def plateau(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, threshold=0.2)


def engine_of(
    *, steps: int = STEPS, metric: str | None = None, splits: tuple[str, ...] = ("test", "valid")
) -> tuple[Engine, list[float]]:
    """An engine that evaluates every other step, and the list that its rates go to."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    schedule: Any = plateau(optimizer)
    if metric is not None:
        schedule = TorchSchedule(schedule, metric=metric)
    backward = OptimizerStep(optimizer, schedule=schedule)
    process = Supervised(model, F.mse_loss, backward=backward)
    rates: list[float] = []
    note = Handler(event=Event.STEP_END, fn=lambda: rates.append(backward.lr))
    loaders = {split: Loader(points(12, seed=3), batch_size=6) for split in splits}
    evaluate = Evaluate(loaders, every=f"{EVERY} steps")
    handlers = [*evaluate.handlers(), note]
    return Engine(process, Loader(points(20), batch_size=4), steps=steps, handlers=handlers), rates


def rates_by_hand() -> list[float]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    scheduler = plateau(optimizer)
    xs, ys = points(12, seed=3).tensors
    rates: list[float] = []
    loader = Loader(points(20), batch_size=4, seed=0)
    batches = [
        batch
        for epoch in range(5)
        for window in loader.windows(epoch, 0)
        for batch in window.batches
    ]
    for step, (x, y) in enumerate(batches[:STEPS], 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                scheduler.step(float(F.mse_loss(model(xs), ys)))
    return rates


def test_the_rate_follows_the_loss_of_the_evaluations_as_in_a_loop_by_hand() -> None:
    engine, rates = engine_of()

    engine.run()

    assert len(set(rates)) > 2
    assert rates == pytest.approx(rates_by_hand())


@pytest.mark.parametrize("at", range(1, STEPS, 3))
def test_a_resumed_run_lowers_the_rate_where_an_uninterrupted_one_does(at: int) -> None:
    whole, expected = engine_of()
    whole.run()
    first, rates = engine_of()

    def leave() -> None:
        if first.state.step == at:
            first.stop("left", interrupts=True)

    first.on("step_end")(leave)
    first.run()

    second, later = engine_of()
    restore(second, capture_state(first))
    second.run()

    assert rates + later == expected
    assert "PlateauFollower" in capture_state(first)


def test_a_metric_that_no_evaluation_gives_is_named() -> None:
    engine, _ = engine_of(metric="valid/los")

    with pytest.raises(InputError, match="follows 'valid/los'") as caught:
        engine.run()

    assert caught.value.fix == "did you mean `valid/loss`?"


def test_a_metric_of_a_split_that_nobody_evaluates_is_told_at_the_end() -> None:
    engine, rates = engine_of(splits=("test",))

    with pytest.warns(UserWarning, match="'valid/loss', which was never measured"):
        engine.run()

    assert set(rates) == {0.4}


def test_each_of_several_optimizers_follows_its_own_metric() -> None:
    parts = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
    steps = {}
    for name, metric in (("a", "valid/loss"), ("b", "test/loss")):
        optimizer = torch.optim.SGD(parts[name].parameters(), lr=1.0)
        scheduler = ReduceLROnPlateau(optimizer, patience=0)
        steps[name] = OptimizerStep(optimizer, schedule=TorchSchedule(scheduler, metric=metric))

    class Progress:
        step, split, metrics = 1, "valid", {"valid/loss": 1.0, "test/loss": 1.0}

    progress: Any = Progress()
    handlers = MultiOptimizerStep(steps).handlers(progress)
    for progress.step in (1, 2, 3):
        for handler in handlers:
            if handler.event == Event.EVAL_END:
                handler.fn()

    assert [steps[name].rate.read()[""] for name in "ab"] == pytest.approx([0.01, 1.0])
