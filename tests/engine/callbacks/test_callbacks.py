"""Every handler of the engine leaves the training's bits as they are, or says what it changes."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from collections.abc import Callable
from io import StringIO
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import assay.engine.callbacks
from assay.compat.thexp.trainer import Callback
from assay.core.ports import MemoryRecorder
from assay.engine import (
    EMA,
    Display,
    EarlyStop,
    Engine,
    Evaluate,
    Loader,
    Memory,
    Norms,
    Pipelines,
    Probe,
    Profile,
    ResetOptimizer,
    Save,
    Saver,
    SetRequiresGrad,
    SetValue,
    Throughput,
)
from assay.engine.callbacks.batch_digest import BatchDigest
from assay.engine.callbacks.debug_lines import CompileReport
from assay.engine.callbacks.witness import ResumeWitness
from assay.engine.loop.engine_state import capture_state, restore, unlike
from engine.toys import Noisy, engine, hard_net, loader, same_bits, supervised

Make = Callable[[Path], Any]

OBSERVERS: dict[str, Make] = {
    "BatchDigest": lambda folder: BatchDigest(),
    "CompileReport": lambda folder: CompileReport(lambda line: None),
    "Display": lambda folder: Display(logger=getLogger("test"), every="1 step", stream=StringIO()),
    "EMA": lambda folder: EMA(0.9),
    "Evaluate": lambda folder: Evaluate({"valid": Loader(Noisy(6), batch_size=4)}, every="1 step"),
    "Memory": lambda folder: Memory("1 step"),
    "Norms": lambda folder: Norms("1 step"),
    "Pipelines": lambda folder: Pipelines(
        begin_step=[lambda **kwargs: kwargs], end_epoch=[lambda **kwargs: kwargs]
    ),
    "Probe": lambda folder: Probe("*", [1, 2, 5], inputs=True),
    "Profile": lambda folder: Profile(1, 2),
    "ResumeWitness": lambda folder: ResumeWitness(),
    "Save": lambda folder: Save(Saver(folder), every="1 step", best=("valid/loss", "min")),
    "Throughput": lambda folder: Throughput(),
}
CHANGERS: dict[str, Make] = {
    "EarlyStop": lambda folder: EarlyStop("valid/loss", "max", patience=1),
    "ResetOptimizer": lambda folder: ResetOptimizer(3),
    "SetRequiresGrad": lambda folder: SetRequiresGrad(3, "0.*"),
    "SetValue": lambda folder: SetValue(3, "optimizer.lr", 0.5),
}


def shipped() -> dict[str, type]:
    """Every class of the room that has handlers, but for those that are hooked to a Trainer."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(assay.engine.callbacks.__path__):
        room = importlib.import_module(f"assay.engine.callbacks.{module.name}")
        for name, kind in vars(room).items():
            if (
                inspect.isclass(kind)
                and kind.__module__ == room.__name__
                and hasattr(kind, "handlers")
                and not issubclass(kind, Callback)
            ):
                found[name] = kind
    return {name: kind for name, kind in found.items() if not inspect.isabstract(kind)}


def trained(
    folder: Path, *make: Make, accumulate: int = 1
) -> tuple[Engine, list[Any], MemoryRecorder]:
    """Train with all that is easily disturbed, evaluated every second step.

    Return the engine, what the run saw, and its recorder.
    """
    model, recorder = hard_net(), MemoryRecorder()
    process = supervised(model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
    train = Loader(Noisy(), batch_size=8, shuffle=True, accumulate=accumulate)
    runs = engine(process, train, epochs=3, recorder=recorder)
    runs.bus.extend(
        Evaluate(
            {"valid": loader(10, 4), "noisy": Loader(Noisy(6), batch_size=4)}, every="2 steps"
        ).handlers()
    )
    for each in make:
        runs.bus.extend(each(folder).handlers())
    seen: list[Tensor] = []
    runs.on("step_end")(lambda state: seen.append(state.batch[0].clone()))
    random.seed(1), np.random.seed(1)
    runs.run()
    parts = capture_state(runs)
    return (
        runs,
        [parts["model"], parts["optimizer"], seen, random.random(), float(np.random.rand())],
        recorder,
    )


def test_every_handler_is_known_here_and_says_so_if_it_changes_the_training() -> None:
    assert shipped().keys() == OBSERVERS.keys() | CHANGERS.keys()
    assert {
        name for name, kind in shipped().items() if getattr(kind, "changes", "")
    } == CHANGERS.keys()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", OBSERVERS)
def test_observing_changes_no_bit_of_the_training(
    name: str, accumulate: int, tmp_path: Path
) -> None:
    runs, alone, recorder = trained(tmp_path, accumulate=accumulate)
    watched_runs, watched, watched_recorder = trained(
        tmp_path, OBSERVERS[name], accumulate=accumulate
    )

    assert same_bits(watched, alone)
    assert watched_runs.state.step == runs.state.step == 9
    for curve in ("train/loss", "train/lr"):
        assert watched_recorder.curve(curve) == recorder.curve(curve)


@pytest.mark.slow
def test_all_observers_together_change_no_bit_of_the_training(tmp_path: Path) -> None:
    _, alone, _ = trained(tmp_path)
    _, watched, _ = trained(tmp_path, *OBSERVERS.values())

    assert same_bits(watched, alone)


@pytest.mark.parametrize("name", CHANGERS)
def test_what_is_there_to_change_the_training_does(name: str, tmp_path: Path) -> None:
    _, alone, _ = trained(tmp_path)
    _, changed, _ = trained(tmp_path, CHANGERS[name])

    assert not same_bits(changed, alone)


@pytest.mark.parametrize("name", OBSERVERS | CHANGERS)
def test_a_state_that_was_loaded_is_the_state_that_is_asked_for_before_the_run_goes_on(
    name: str, tmp_path: Path
) -> None:
    make = (OBSERVERS | CHANGERS)[name]
    runs, _, _ = trained(tmp_path, make)
    parts = capture_state(runs)
    model = hard_net()
    again = engine(
        supervised(model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01)), epochs=4
    )
    again.bus.extend(make(tmp_path / "again").handlers())

    restore(again, parts)

    assert unlike(again, parts) == []


@pytest.mark.parametrize("name", OBSERVERS | CHANGERS)
def test_an_exception_is_raised_as_it_is_and_nothing_stays_behind(
    name: str, tmp_path: Path
) -> None:
    runs = engine(supervised(hard_net()), epochs=3)
    runs.bus.extend(Evaluate({"valid": loader(10, 4)}, every="1 step").handlers())
    make = (OBSERVERS | CHANGERS)[name]
    runs.bus.extend(make(tmp_path).handlers())
    before = {k: v.clone() for k, v in runs.process.model.state_dict().items()}
    runs.on("eval_step_end", priority=10)(lambda: 1 / 0)
    runs.on("step_end", priority=-(10**6))(
        lambda engine: before.update(
            {k: v.clone() for k, v in engine.process.model.state_dict().items()}
        )
    )

    with pytest.raises(ZeroDivisionError):
        runs.run()

    assert same_bits(runs.process.model.state_dict(), before)
    assert all(not module._forward_hooks for module in runs.process.model.modules())
    assert not runs.process.backward.optimizer._optimizer_step_pre_hooks
