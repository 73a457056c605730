"""The loop: its order, its bounds, and that it computes what a loop written by hand computes."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.core import events
from assay.core.errors import InputError
from assay.core.events import At, Event, Handler
from assay.core.ports import MemoryRecorder
from assay.engine import (
    Engine,
    Evaluate,
    Loader,
    OptimizerStep,
    Save,
    Saver,
    Supervised,
    WarmupCosine,
)
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.loop.step import TrainLoop
from assay.engine.numerics.seed import STEP, stream_key
from engine.toys import (
    Counted,
    Noisy,
    engine,
    hard_net,
    heard,
    kept,
    loader,
    net,
    points,
    same_bits,
    supervised,
    tensors_of,
    weights_of,
)

# ------------------------------------------------------------------------------------------------------------- order


def told_by_the_docs(first: str, last: str, times: dict[str, int]) -> list[str]:
    """Events of the pseudo-code in `core.events`, from one line to another, loops unrolled."""
    lines = [line.split("#")[0].rstrip() for line in inspect.getdoc(events).splitlines()]  # type: ignore[union-attr]
    begin = next(number for number, line in enumerate(lines) if line.strip() == first)
    end = next(number for number, line in enumerate(lines) if line.strip() == last)
    return unrolled(lines[begin : end + 1], times)


def unrolled(lines: list[str], times: dict[str, int]) -> list[str]:
    told: list[str] = []
    while lines:
        line, *lines = lines
        words = line.strip()
        if words.startswith("for each"):
            depth = len(line) - len(line.lstrip())
            size = next(
                (n for n, each in enumerate(lines) if len(each) - len(each.lstrip()) <= depth),
                len(lines),
            )
            told += (
                unrolled(lines[:size], times) * times[words.removeprefix("for each ").rstrip(":")]
            )
            lines = lines[size:]
        elif words in set(Event):
            told.append(words)
    return told


TRAINING = {"epoch": 2, "window of micro-batches": 3, "batch of the window": 2}


def test_a_run_has_the_events_of_the_docs_in_their_order() -> None:
    runs = engine(train=[(x[None], y[None]) for x, y in points(6)], accumulate=2)
    told = heard(runs)

    runs.run()

    expected = told_by_the_docs("run_begin", "run_end", TRAINING)
    assert len(expected) == 1 + 2 * (1 + 3 * (1 + 2 * 2 + 1) + 1) + 1
    assert told == expected


def test_evaluation_and_saving_have_theirs_inside_the_event_they_listen_to(tmp_path: Any) -> None:
    runs = engine(epochs=1)
    told = heard(runs)
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())
    runs.bus.extend(Save(Saver(tmp_path)).handlers())

    runs.run()

    evaluation = told_by_the_docs("eval_begin", "eval_end", {"batch": 2})
    saving = told_by_the_docs("checkpoint_begin", "checkpoint_end", {})
    assert len(evaluation) == 6 and len(saving) == 2
    assert told[told.index("epoch_end") :] == ["epoch_end", *evaluation, *saving, "run_end"]


@pytest.mark.parametrize(
    "part",
    [
        Engine.run,
        Engine.__iter__,
        TrainLoop.train_step,
        TrainLoop.windows_of_epoch,
        TrainLoop.micro_batches,
    ],
)
def test_the_loop_fits_on_a_screen(part: Any) -> None:
    assert len(inspect.getsource(part).splitlines()) <= 60


@pytest.mark.row("C64")
@pytest.mark.parametrize(
    "event",
    [event for event in Event if event.value.split("_")[0] in ("run", "epoch", "step", "backward")],
)
def test_an_exception_comes_in_place_of_what_was_left(event: Event) -> None:
    runs = engine()
    told = heard(runs)

    @runs.on(event)
    def explode() -> None:
        raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError) as caught:
        runs.run()

    whole = told_by_the_docs("run_begin", "run_end", TRAINING | {"batch of the window": 1})
    assert told == [*whole[: whole.index(event) + 1], "exception"]
    assert runs.state.error is caught.value
    assert any("explode" in note and event.value in note for note in caught.value.__notes__)


SPLITS = {"valid": 6, "other": 3}
COUNTS = {
    Event.RUN_BEGIN: [0],
    Event.RUN_END: [1],
    Event.EPOCH_BEGIN: [0, 1],
    Event.EPOCH_END: [1, 2],
    Event.STEP_BEGIN: [0, 1, 2, 3, 4, 5],
    Event.STEP_END: [1, 2, 3, 4, 5, 6],
    Event.BACKWARD_BEGIN: list(range(10)),
    Event.BACKWARD_END: list(range(1, 11)),
    Event.EVAL_BEGIN: [0, 1, 2, 3],
    Event.EVAL_END: [1, 2, 3, 4],
    Event.EVAL_STEP_BEGIN: list(range(6)),
    Event.EVAL_STEP_END: list(range(1, 7)),
    Event.CHECKPOINT_BEGIN: [0, 1],
    Event.CHECKPOINT_END: [1, 2],
    Event.EXCEPTION: [],
}


def observed(runs: Engine, folder: Any) -> dict[Event, Counted]:
    runs.bus.extend(Evaluate({name: loader(size, 4) for name, size in SPLITS.items()}).handlers())
    runs.bus.extend(Save(Saver(folder)).handlers())
    return {event: Counted(runs, event) for event in Event}


def test_events_count_what_is_completed(tmp_path: Any) -> None:
    runs = engine(train=loader(accumulate=2))
    counted = observed(runs, tmp_path)

    runs.run()

    assert {event: each.counts for event, each in counted.items()} == COUNTS


def test_a_resumed_run_goes_on_counting_steps_epochs_and_micro_batches(tmp_path: Any) -> None:
    first = engine(
        train=loader(accumulate=2),
        handlers=[
            Handler(
                event=Event.STEP_END, fn=lambda engine: engine.stop("x"), when=At(frozenset({4}))
            )
        ],
    )
    first.run()
    second = engine(train=loader(accumulate=2))
    restore(second, capture_state(first))
    counted = observed(second, tmp_path)

    second.run()

    counts = {event: each.counts for event, each in counted.items()}
    assert counts[Event.RUN_BEGIN] == [0] and counts[Event.RUN_END] == [1]
    assert counts[Event.EPOCH_BEGIN] == [1] and counts[Event.EPOCH_END] == [2]
    assert counts[Event.STEP_BEGIN] == [4, 5] and counts[Event.STEP_END] == [5, 6]
    assert counts[Event.BACKWARD_BEGIN] == [7, 8, 9] and counts[Event.BACKWARD_END] == [8, 9, 10]
    assert counts[Event.EVAL_END] == [1, 2] and counts[Event.CHECKPOINT_END] == [1]


@pytest.mark.parametrize(
    "event",
    ["run_end", "exception", "eval_end", "checkpoint_end", "backward_end", "step_end", "epoch_end"],
)
def test_every_1_hears_of_the_first_that_is_completed(event: str, tmp_path: Any) -> None:
    runs = engine(steps=1, train=loader(8))
    observed(runs, tmp_path)
    told: list[str] = []
    runs.on(event, every=1)(lambda: told.append(event))
    if event == "exception":
        runs.on("step_end")(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runs.run()
    else:
        runs.run()

    assert told[:1] == [event]


@pytest.mark.row("D21")
def test_a_handler_is_called_at_its_period_and_gets_what_it_asks_for() -> None:
    runs = engine()
    told: list[Any] = []

    @runs.on("step_end", every=2)
    def tell(
        state: Any,
        model: nn.Module,
        backward: OptimizerStep,
        process: Any,
        engine: Engine,
        other: int = 7,
    ) -> None:
        assert model is process.model and backward is process.backward and state is engine.state
        told.append((state.step, other))

    runs.run()

    assert told == [(2, 7), (4, 7), (6, 7)]


def test_an_event_that_does_not_exist_is_named_with_its_neighbour() -> None:
    with pytest.raises(InputError, match="no event 'step_edn'") as caught:
        engine().on("step_edn")(print)

    assert "did you mean `step_end`?" in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ bounds


@pytest.mark.row("D22")
@pytest.mark.parametrize(
    ("given", "steps", "epochs"),
    [
        ({}, 3, 1),
        ({"epochs": 2}, 6, 2),
        ({"steps": 4}, 4, 1),
        ({"steps": 3}, 3, 1),
        ({"epochs": 2, "steps": 4}, 4, 1),
        ({"epochs": 1, "steps": 4}, 3, 1),
        ({"samples": 21}, 4, 1),
        ({"samples": 20}, 3, 1),
        ({"epochs": 9, "samples": 28}, 4, 1),
        ({"seconds": 1e-9}, 1, 0),
        ({"epochs": 1, "seconds": 1e9}, 3, 1),
    ],
)
def test_the_first_bound_that_is_reached_ends_the_run(
    given: dict[str, Any], steps: int, epochs: int
) -> None:
    runs = Engine(supervised(), loader(), **given)
    told = heard(runs, Event.STEP_END, Event.EPOCH_END, Event.RUN_END)

    state = runs.run()

    assert (state.step, state.epoch) == (steps, epochs)
    assert (told.count("step_end"), told.count("epoch_end"), told[-1]) == (steps, epochs, "run_end")


@pytest.mark.parametrize("bound", ["epochs", "steps", "samples", "seconds"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_bound_of_nothing_is_refused_by_its_name(bound: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{bound} is {value}; it must be greater than 0"):
        engine(**{bound: value})


def test_how_long_the_run_is_is_known_before_it_begins() -> None:
    known = [
        engine(epochs=2),
        engine(steps=4),
        engine(epochs=1, steps=9),
        engine(train=iter([]), epochs=3),
        engine(samples=9),
    ]

    assert [runs.state.max_steps for runs in known] == [6, 4, 3, None, 2]
    assert [runs.state.max_epochs for runs in known] == [2, None, 1, 3, None]


def test_no_batch_is_drawn_that_nobody_trains_on() -> None:
    drawn = []

    def batches() -> Iterator[Any]:
        for number in range(100):
            drawn.append(number)
            yield points(2).tensors

    engine(train=batches(), steps=3).run()

    assert drawn == [0, 1, 2]


def test_an_epoch_of_unknown_length_ends_with_its_data() -> None:
    class Unsized:
        def __iter__(self) -> Iterator[Any]:
            return iter([points(2).tensors] * 3)

    runs = engine(train=Unsized(), epochs=2)
    told = heard(runs, Event.EPOCH_END)

    state = runs.run()

    assert (state.step, state.epoch, state.epoch_length, len(told)) == (6, 2, 3, 2)


@pytest.mark.parametrize(
    ("train", "given"),
    [
        ([], {"epochs": 2}),
        ([], {"steps": 3}),
        (iter([]), {"epochs": 1}),
        (loader(7, 8, drop_last=True), {"epochs": 1}),
    ],
)
def test_data_without_a_batch_is_refused(train: Any, given: dict[str, int]) -> None:
    with pytest.raises(InputError, match="training data is empty") as caught:
        engine(train=train, **given).run()

    assert "[data.train]" in caught.value.fix


def test_samples_cannot_bound_a_run_whose_batches_cannot_be_counted() -> None:
    class Opaque(Supervised):
        def forward_step(self, batch: Any) -> Any:
            return super().forward_step(points(2).tensors)

    model = net()
    process = Opaque(model, nn.MSELoss(), torch.optim.SGD(model.parameters()))
    with pytest.raises(InputError, match="bounded by samples") as caught:
        engine(process, [object()] * 3, samples=3).run()

    assert "object" in caught.value.what
    assert "steps" in caught.value.fix


# -------------------------------------------------------------------------------------------------- stop and failures


@pytest.mark.row("D22")
def test_stop_ends_after_the_step_as_a_bound_does() -> None:
    runs = engine(epochs=5)
    told = heard(runs, Event.STEP_END, Event.EPOCH_END, Event.RUN_END)
    runs.on("step_end", every=5)(lambda: runs.stop("enough"))

    state = runs.run()

    assert (state.step, state.epoch, state.epoch_step, state.stop.reason) == (5, 1, 2, "enough")
    assert told[-1] == "run_end"


def test_the_first_reason_to_stop_is_kept() -> None:
    runs = engine()
    runs.stop("first")
    runs.stop("second")

    state = runs.run()

    assert (state.stop.reason, state.step) == ("first", 0)


@pytest.mark.parametrize(("interrupts", "epochs"), [(False, 1), (True, 0)])
def test_interrupted_the_end_of_the_epoch_is_left_to_the_run_that_goes_on(
    interrupts: bool, epochs: int
) -> None:
    runs = engine()
    told = heard(runs, Event.EPOCH_END, Event.RUN_END)
    runs.on("step_end", every=3)(lambda: runs.stop("signal", interrupts=interrupts))

    runs.run()
    later = engine()
    restore(later, capture_state(runs))
    told_later = heard(later, Event.EPOCH_END)
    later.run()

    assert told == ["epoch_end"] * epochs + ["run_end"]
    assert len(told_later) == 2 - epochs
    assert (later.state.epoch, later.state.step) == (2, 6)


def test_a_step_that_fails_counts_nothing() -> None:
    runs = engine(train=loader(accumulate=2))
    before: dict[str, Any] = {}
    runs.on("step_end")(lambda state: before.update(state.state_dict()))

    @runs.on("backward_end", every=4)
    def explode() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runs.run()

    assert before["step"] == 1 and before["micro_step"] == 2
    assert runs.state.state_dict() == before


def test_a_process_without_backward_cannot_train() -> None:
    with pytest.raises(InputError, match="Supervised cannot train: it has no `backward`") as caught:
        engine(Supervised(net(), nn.MSELoss())).run()

    assert "optimizer" in caught.value.fix


def test_a_model_on_another_device_than_the_engine_is_told_before_the_first_step() -> None:
    with pytest.raises(InputError, match="The model is on meta, the engine on cpu") as caught:
        engine(supervised(net().to("meta"))).run()

    assert 'device="meta"' in caught.value.fix


def test_a_batch_on_another_device_than_the_model_is_told_with_both() -> None:
    inputs, targets = points(2).tensors

    with pytest.raises(InputError, match="The batch is on meta, the model on cpu") as caught:
        engine(train=[(inputs.to("meta"), targets)]).run()

    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "the engine moves it" in caught.value.fix


# ---------------------------------------------------------------------------------------------- equal to a loop by hand


class Halving:
    """Schedule that halves the rate every ten steps: exact in binary, however it is computed."""

    def factor(self, step: int, total: int | None) -> float:
        return 0.5 ** (step // 10)


def by_hand(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    clip: float | None,
    halve: bool,
    micro: int,
) -> dict[str, list[float]]:
    """What anyone would write: 20 samples in steps of 8, 8 and 4, in micro-batches of `micro`."""
    inputs, targets = points(20).tensors
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5 if halve else 1.0)
    curves: dict[str, list[float]] = {"train/loss": [], "train/lr": [], "train/grad_norm": []}
    model.train()
    for step in range(steps):
        first = step % 3 * 8
        size = min(8, 20 - first)
        optimizer.zero_grad()
        mean = 0.0
        for number, start in enumerate(range(first, first + size, micro)):
            part = slice(start, start + micro)
            torch.manual_seed(stream_key(3, STEP, step, number))
            loss = nn.functional.mse_loss(model(inputs[part]), targets[part])
            if micro < size:
                (loss * (micro / size)).backward()
                mean += loss.item() * (micro / size)
            else:
                loss.backward()
                mean = loss.item()
        if clip is not None:
            curves["train/grad_norm"].append(
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item()
            )
        curves["train/loss"].append(mean)
        curves["train/lr"].append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rate.step()
    return curves


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


@pytest.mark.row("B22")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("clip", "halve", "micro", "model"),
    [
        (None, False, 8, net),
        (1.0, False, 8, net),
        (None, True, 8, net),
        (None, False, 4, net),
        (1.0, True, 4, net),
        (1.0, True, 4, hard_net),
    ],
)
def test_fifty_steps_are_those_of_a_loop_by_hand_bit_for_bit(
    optimizer: str, clip: float | None, halve: bool, micro: int, model: Any
) -> None:
    mine, theirs = model(), model()
    own = OPTIMIZERS[optimizer](theirs.parameters())
    expected = by_hand(theirs, own, steps=50, clip=clip, halve=halve, micro=micro)
    recorder = MemoryRecorder()
    backward = OptimizerStep(
        OPTIMIZERS[optimizer](mine.parameters()),
        schedule=Halving() if halve else None,
        clip_norm=clip,
    )

    engine(
        supervised(mine, backward=backward),
        loader(micro_batch_size=micro),
        steps=50,
        seed=3,
        recorder=recorder,
    ).run()

    assert same_bits(mine.state_dict(), theirs.state_dict())
    assert same_bits(backward.optimizer.state_dict()["state"], own.state_dict()["state"])
    for name, curve in expected.items():
        assert recorder.curve(name) == list(enumerate(curve, start=1))[: len(curve)], name
    assert len(recorder.curve("train/loss")) == 50
    assert bool(recorder.curve("train/grad_norm")) == (clip is not None)


@pytest.mark.row("A57")
def test_the_rate_that_is_recorded_is_the_one_that_was_used() -> None:
    recorder = MemoryRecorder()
    model = net()
    schedule = WarmupCosine(warmup_steps=10)
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1), schedule=schedule)

    engine(
        supervised(model, backward=backward), loader(16, accumulate=4), steps=100, recorder=recorder
    ).run()

    def closed_form(step: int) -> float:
        return (
            0.001 + 0.999 * step / 10
            if step < 10
            else 0.5 * (1 + math.cos(math.pi * (step - 10) / 90))
        )

    rates = [rate for _, rate in recorder.curve("train/lr")]
    assert rates == pytest.approx(
        [0.1 * closed_form(step) for step in range(100)], rel=1e-12, abs=1e-15
    )


def test_random_numbers_of_the_forward_pass_depend_on_nothing_that_was_drawn_before() -> None:
    def trained(*, disturb: bool) -> dict[str, Any]:
        runs = engine(supervised(hard_net()), Loader(Noisy(), batch_size=8, shuffle=True))
        if disturb:
            for event in (Event.STEP_BEGIN, Event.STEP_END, Event.BACKWARD_END, Event.EPOCH_END):
                runs.on(event)(lambda: (torch.rand(3), random.random(), np.random.rand()))
        runs.run()
        return weights_of(runs.process.model)

    assert same_bits(trained(disturb=False), trained(disturb=True))


def test_other_seeds_train_other_weights() -> None:
    def trained(seed: int) -> dict[str, Any]:
        runs = engine(supervised(hard_net()), seed=seed)
        runs.run()
        return weights_of(runs.process.model)

    assert same_bits(trained(1), trained(1))
    assert not same_bits(trained(1), trained(2))


# ------------------------------------------------------------------------------------------------------------- resuming


def hard_engine(recorder: MemoryRecorder) -> Engine:
    """Two epochs of five steps with everything on that could make a difference after a resume."""
    model = hard_net()
    backward = OptimizerStep(
        torch.optim.AdamW(model.parameters(), lr=0.01),
        schedule=WarmupCosine(warmup_steps=3),
        clip_norm=1.0,
    )
    runs = engine(
        supervised(model, backward=backward),
        Loader(Noisy(38), batch_size=8, shuffle=True, accumulate=2, seed=5),
        seed=5,
        recorder=recorder,
    )
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}, every="1 epoch").handlers())
    return runs


def test_resuming_at_any_step_gives_the_bits_of_the_uninterrupted_run() -> None:
    recorded = MemoryRecorder()
    whole = hard_engine(recorded)
    saved: dict[tuple[str, int], Any] = {}
    for event in (Event.STEP_END, Event.EPOCH_END):
        whole.bus.add(
            Handler(
                event=event,
                fn=lambda state, e=event: saved.update({(e, state.step): kept(whole)}),
                priority=50,
            )
        )
    whole.run()
    assert whole.state.step == 10 and len(saved) == 12

    for (event, step), parts in saved.items():
        again = MemoryRecorder()
        resumed = hard_engine(again)
        restore(resumed, parts)

        resumed.run()

        assert same_bits(capture_state(resumed), capture_state(whole)), (event, step)
        missing = [
            point
            for point in recorded.points
            if point[1] > step or (event, point[0][:5], point[1]) == (Event.STEP_END, "valid", step)
        ]
        assert again.points == missing, (event, step)


@pytest.mark.parametrize("bound", [{"epochs": 2}, {"steps": 4}, {"samples": 28}])
def test_a_run_whose_bound_is_reached_does_no_further_step(bound: dict[str, int]) -> None:
    whole = engine(**bound)
    whole.run()
    resumed = engine(**bound)
    restore(resumed, capture_state(whole))
    told = heard(resumed)

    resumed.run()

    assert told == ["run_begin", "run_end"]
    assert same_bits(capture_state(resumed), capture_state(whole))


def test_what_was_recorded_of_a_step_is_there_when_its_end_is_told() -> None:
    recorder = MemoryRecorder()
    runs = engine(recorder=recorder)
    lengths: list[int] = []
    runs.on("step_end")(lambda: lengths.append(len(recorder.curve("train/loss"))))

    runs.run()

    assert lengths == [1, 2, 3, 4, 5, 6]


def test_time_is_split_by_what_it_was_spent_on() -> None:
    runs = engine()
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())

    runs.run()

    assert runs.seconds.keys() == {
        *("data", "move", "forward", "backward", "optimizer"),
        *("telling", "evaluation"),
    }
    assert tensors_of(runs.seconds) and all(seconds >= 0 for seconds in runs.seconds.values())
