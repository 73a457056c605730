"""Bounds of a run: a limit of one launch stops it, and schedules count on without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.optim.schedules import TorchSchedule, WarmupCosine, WarmupMultiStep
from engine.toys import net, points, supervised

LENGTH, STEPS = 5, 20  # steps of an epoch, and of the run
BOUNDS: dict[str, dict[str, int]] = {
    "steps": {"steps": STEPS},
    "epochs": {"epochs": STEPS // LENGTH},
    "both": {"epochs": 9, "steps": STEPS},
    "samples": {"samples": STEPS * 4},
    "samples of a part of a batch": {"samples": STEPS * 4 - 3},
}
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": lambda _: WarmupCosine(warmup_ratio=0.2),
    "cosine by the epoch": lambda _: WarmupCosine(warmup_epochs=1, unit="epoch"),
    "milestones": lambda _: WarmupMultiStep([0.3, 0.8]),
    "of torch": lambda optimizer: CosineAnnealingLR(optimizer, T_max=STEPS),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.5, total_steps=STEPS),
    "of torch by the epoch": lambda optimizer: TorchSchedule(
        CosineAnnealingLR(optimizer, T_max=4), unit="epoch"
    ),
}


def engine_of(
    schedule: str, bounds: dict[str, int], max_steps: int | None = None
) -> tuple[Engine, list[float]]:
    """An engine, and the list that its learning rates go to."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    backward = OptimizerStep(optimizer, schedule=SCHEDULES[schedule](optimizer))
    process = Supervised(model, torch.nn.functional.mse_loss, backward=backward)
    rates: list[float] = []
    note = Handler(event=Event.STEP_END, fn=lambda: rates.append(backward.lr))
    loader = Loader(points(20), batch_size=4)
    return Engine(process, loader, handlers=[note], max_steps=max_steps, **bounds), rates


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_limit_of_one_launch_stops_the_run_and_leaves_its_schedule_as_it_is(
    schedule: str, bounds: str
) -> None:
    whole, expected = engine_of(schedule, BOUNDS[bounds])
    whole.run()

    for limit in (1, 3, LENGTH, STEPS - 1, STEPS, STEPS + 5):
        limited, rates = engine_of(schedule, BOUNDS[bounds], limit)
        limited.run()

        assert rates == expected[:limit]
        reached = limited.bounds.reached_limit(limited.state)
        assert limit >= STEPS or reached == f"limit of {limit:,} step{'s' if limit > 1 else ''}"

        resumed, later = engine_of(schedule, BOUNDS[bounds])
        restore(resumed, capture_state(limited))
        resumed.run()

        assert rates + later == expected
        for one, other in zip(
            whole.process.model.parameters(), resumed.process.model.parameters(), strict=True
        ):
            assert torch.equal(one, other)


def test_a_schedule_that_needs_the_length_of_the_run_does_not_take_a_limit_for_it() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward = OptimizerStep(optimizer, schedule=WarmupCosine())
    process = Supervised(model, torch.nn.functional.mse_loss, backward=backward)
    stream = iter(Loader(points(20), batch_size=4))

    with pytest.raises(InputError, match="needs to know how long the run is"):
        Engine(process, stream, epochs=2, max_steps=3).run()


@pytest.mark.parametrize("size", [3, 7, 20])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [1, 19, 20, 21, 40, 57])
def test_a_run_of_samples_is_as_long_as_is_expected_before_its_first_step(
    samples: int, drop_last: bool, size: int
) -> None:
    loader = Loader(points(20), batch_size=size, drop_last=drop_last)
    runs = Engine(supervised(), loader, samples=samples)
    expected: list[int | None] = []
    runs.on("step_begin")(lambda state: expected.append(state.max_steps))

    state = runs.run()

    assert set(expected) == {state.step}
    assert state.samples >= samples > state.samples - size
