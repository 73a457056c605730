"""Where a run is: what each field means at each event, and what a checkpoint keeps of it."""

from __future__ import annotations

from typing import Any

import pytest

from assay.core.events import Event
from assay.core.ports import MemoryRecorder
from assay.engine import Evaluate, State
from assay.engine.loop.state import SAVED
from engine.toys import engine, kept, loader, supervised

# After each event of two epochs of two steps of two micro-batches (6, then 2 samples; so 3 + 3 and
# 2):
# epoch, epoch_step, step, micro_step, samples.
MEANING = {
    Event.RUN_BEGIN: [(0, 0, 0, 0, 0)],
    Event.EPOCH_BEGIN: [(0, 0, 0, 0, 0), (1, 0, 2, 3, 8)],
    Event.STEP_BEGIN: [(0, 0, 0, 0, 0), (0, 1, 1, 2, 6), (1, 0, 2, 3, 8), (1, 1, 3, 5, 14)],
    Event.BACKWARD_BEGIN: [
        (0, 0, 0, 0, 0),
        (0, 0, 0, 1, 0),
        (0, 1, 1, 2, 6),
        (1, 0, 2, 3, 8),
        (1, 0, 2, 4, 8),
        (1, 1, 3, 5, 14),
    ],
    Event.BACKWARD_END: [
        (0, 0, 0, 1, 0),
        (0, 0, 0, 2, 0),
        (0, 1, 1, 3, 6),
        (1, 0, 2, 4, 8),
        (1, 0, 2, 5, 8),
        (1, 1, 3, 6, 14),
    ],
    Event.STEP_END: [(0, 1, 1, 2, 6), (0, 2, 2, 3, 8), (1, 1, 3, 5, 14), (1, 2, 4, 6, 16)],
    Event.EPOCH_END: [(1, 0, 2, 3, 8), (2, 0, 4, 6, 16)],
    Event.RUN_END: [(2, 0, 4, 6, 16)],
}


def counters(state: State) -> tuple[int, ...]:
    return state.epoch, state.epoch_step, state.step, state.micro_step, state.samples


@pytest.mark.row("D19")
@pytest.mark.parametrize("event", MEANING)
def test_counters_say_what_is_completed_at_each_event(event: Event) -> None:
    runs = engine(train=loader(8, 6, accumulate=2))
    seen: list[tuple[int, ...]] = []
    runs.on(event)(lambda state: seen.append(counters(state)))

    runs.run()

    assert seen == MEANING[event]


NOTHING = (None, None, {})
"""(samples of the batch, samples of the output, metrics)"""
LATEST = {
    Event.RUN_BEGIN: [NOTHING],
    Event.EPOCH_BEGIN: [NOTHING, (2, 2, {"valid/loss": 1})],
    Event.STEP_BEGIN: [NOTHING, (6, 6, {}), (2, 2, {"valid/loss": 1}), (6, 6, {"valid/loss": 1})],
    Event.BACKWARD_BEGIN: [
        (6, None, {}),
        (2, 6, {}),
        (6, 2, {"valid/loss": 1}),
        (2, 6, {"valid/loss": 1}),
    ],
    Event.BACKWARD_END: [
        (6, 6, {}),
        (2, 2, {}),
        (6, 6, {"valid/loss": 1}),
        (2, 2, {"valid/loss": 1}),
    ],
    Event.STEP_END: [(6, 6, {}), (2, 2, {}), (6, 6, {"valid/loss": 1}), (2, 2, {"valid/loss": 1})],
    Event.EVAL_BEGIN: [(2, 2, {}), (2, 2, {"valid/loss": 1})],
    Event.EVAL_STEP_BEGIN: [(2, 2, {}), (2, 2, {"valid/loss": 1})],
    Event.EVAL_STEP_END: [(2, 2, {}), (2, 2, {"valid/loss": 1})],
    Event.EVAL_END: [(2, 2, {"valid/loss": 1}), (2, 2, {"valid/loss": 2})],
    Event.EPOCH_END: [(2, 2, {"valid/loss": 1}), (2, 2, {"valid/loss": 2})],
    Event.RUN_END: [(2, 2, {"valid/loss": 2})],
}
EVALUATING = (Event.EVAL_BEGIN, Event.EVAL_STEP_BEGIN, Event.EVAL_STEP_END, Event.EVAL_END)


@pytest.mark.row("D19")
@pytest.mark.parametrize("event", LATEST)
def test_batch_output_metrics_and_loader_are_the_newest_at_each_event(event: Event) -> None:
    """`LATEST` names evaluation losses by number, from 1; evaluation listens first at epoch end."""
    train, valid = loader(8, 6), loader(6, 6)
    recorder = MemoryRecorder()
    runs = engine(train=train, handlers=Evaluate({"valid": valid}).handlers(), recorder=recorder)
    seen: list[Any] = []

    @runs.on(event, priority=1)
    def look(state: State) -> None:
        size = None if state.batch is None else len(state.batch[0])
        output = None if state.output is None else len(state.output["pred"])
        seen.append((size, output, dict(state.metrics)))
        assert state.dataloader is (valid if event in EVALUATING else train)
        assert state.split == ("valid" if event in EVALUATING else "")
        assert (state.max_epochs, state.max_iterations, state.epoch_length) == (2, 4, 2)
        assert (state.local_iteration, state.global_iteration) == (state.epoch_step, state.step)

    runs.run()

    losses = [loss for _, loss in recorder.curve("valid/loss")]
    expected = [
        (*sizes, {name: losses[i - 1] for name, i in metrics.items()})
        for *sizes, metrics in LATEST[event]
    ]
    assert seen == expected and len(set(losses)) == 2


@pytest.mark.row("D20")
def test_nested_metrics_come_back_and_are_not_shared() -> None:
    state, loaded = (
        State(step=3, metrics={"valid": {"acc": 0.5, "by_class": [0.25, 0.75]}, "n": 2}),
        State(),
    )
    saved = state.state_dict()

    loaded.load_state_dict(saved)
    state.metrics["valid"]["by_class"][0] = 9.0
    loaded.metrics["valid"]["acc"] = 9.0

    assert saved["metrics"] == {"valid": {"acc": 0.5, "by_class": [0.25, 0.75]}, "n": 2}
    assert loaded.step == 3 and loaded.metrics["valid"]["by_class"] == [0.25, 0.75]


@pytest.mark.row("D20")
def test_nested_metrics_are_kept_in_a_checkpoint() -> None:
    runs = engine(epochs=1)
    runs.run()
    runs.state.metrics = {"valid": {"acc": 0.5, "by_class": [0.25, 0.75]}, "n": 2}

    state = State()
    state.load_state_dict(kept(runs)["state"])

    assert state.state_dict() == runs.state.state_dict()
    assert state.batch is None and state.output is None and state.dataloader is None


def test_iterations_are_steps_within_the_epoch_and_in_all() -> None:
    runs = engine()
    seen: list[tuple[int, int]] = []
    runs.on("step_end")(lambda state: seen.append((state.local_iteration, state.global_iteration)))

    runs.run()

    assert seen == [(1, 1), (2, 2), (3, 3), (1, 4), (2, 5), (3, 6)]


def test_loss_batch_and_output_are_those_of_the_newest_step() -> None:
    runs = engine(train=loader(8, 6))
    losses: list[float] = []

    @runs.on("step_end")
    def look(state: State) -> None:
        losses.append(state.loss)
        assert len(state.batch[0]) == (6 if state.step % 2 else 2)
        assert state.output["loss"].item() == state.loss
        assert not state.output["pred"].requires_grad

    runs.run()

    assert len(set(losses)) == 4


def test_bounds_are_there_and_the_length_of_an_epoch() -> None:
    runs = engine(train=loader(20, 8), epochs=3, steps=7)

    assert (runs.state.max_epochs, runs.state.max_steps, runs.state.epoch_length) == (3, 7, 3)


@pytest.mark.row("D24")
def test_what_was_best_comes_back_with_the_counters() -> None:
    runs = engine(steps=4)
    runs.run()
    runs.state.metrics, runs.state.evaluated = {"valid/acc": 0.5}, {"valid": 3}
    runs.state.best = {"metric": "valid/acc", "mode": "max", "value": 0.75, "step": 3}

    state = State()
    state.load_state_dict(kept(runs)["state"])

    assert {name: getattr(state, name) for name in SAVED} == {
        "epoch": 1,
        "epoch_step": 1,
        "epoch_samples": 8,
        "loss": runs.state.loss,
        "ends_epoch": False,
        "length_error": None,
        "step": 4,
        "micro_step": 4,
        "samples": 28,
        "metrics": {"valid/acc": 0.5},
        "evaluated": {"valid": 3},
        "best": {"metric": "valid/acc", "mode": "max", "value": 0.75, "step": 3},
    }


def test_a_state_that_was_saved_or_loaded_shares_nothing_with_the_run() -> None:
    running = State(metrics={"valid/acc": 0.5}, best={"value": 0.5})
    saved: dict[str, Any] = running.state_dict()
    loaded = State()
    loaded.load_state_dict(saved)

    running.metrics["valid/acc"] = 0.9
    loaded.metrics["valid/loss"] = 1.0

    assert saved["metrics"] == {"valid/acc": 0.5}
    assert running.metrics == {"valid/acc": 0.9}


def test_bounds_batches_and_reasons_are_not_saved() -> None:
    runs = engine(supervised(), epochs=1)
    runs.run()
    runs.stop("enough", interrupts=True)

    assert runs.state.state_dict().keys() == set(SAVED)
    assert not {"batch", "output", "max_steps", "stop", "error"} & set(SAVED)
