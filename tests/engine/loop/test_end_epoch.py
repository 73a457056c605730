"""An epoch that a hook ends early: what comes next, how long the run is, and how it resumes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from assay.core.events import Event
from assay.engine import Engine, Loader, OptimizerStep, Supervised, WarmupCosine, chain
from assay.engine.data import streams
from assay.engine.data.map_style import SequenceWrapper
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import engine, hard_net, heard, kept, points, same_bits, supervised

Cuts = Mapping[int, int]
"""The steps after which an epoch is ended, by epoch."""
SIZE, BATCH, LENGTH = 20, 4, 5


def ending(
    cuts: Cuts, train: Iterable[Any] | None = None, *, schedule: Any = None, **given: Any
) -> tuple[Engine, list[tuple[int, Tensor]]]:
    """An engine whose epochs are ended by a hook, and the list of what it trains on."""
    data = Loader(points(SIZE), batch_size=BATCH, shuffle=True) if train is None else train
    model = hard_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    backward = OptimizerStep(optimizer, schedule=schedule)
    runs = Engine(Supervised(model, nn.MSELoss(), backward=backward), data, seed=3, **given)
    seen: list[tuple[int, Tensor]] = []

    @runs.on("step_end", priority=-1)
    def look() -> None:
        state = runs.state
        seen.append((state.epoch, state.batch[0]))
        if state.epoch_step == cuts.get(state.epoch):
            runs.end_epoch()

    return runs, seen


def expected(cuts: Cuts, epochs: int, *, steps: int = 10**6) -> list[tuple[int, Tensor]]:
    """The begin of each epoch, as a loader gives it that knows of no end."""
    loader = Loader(points(SIZE), batch_size=BATCH, shuffle=True, seed=3)
    found = [
        (epoch, window.batches[0][0])
        for epoch in range(epochs)
        for number, window in enumerate(loader.windows(epoch, 0))
        if number < cuts.get(epoch, LENGTH)
    ]
    return found[:steps]


def same(one: list[tuple[int, Tensor]], other: list[tuple[int, Tensor]]) -> bool:
    return [epoch for epoch, _ in one] == [epoch for epoch, _ in other] and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True)
    )


@pytest.mark.row("D22")
def test_the_next_epoch_begins_at_its_own_beginning_and_the_run_is_that_much_shorter() -> None:
    cuts = {0: 2, 2: 1}
    runs, seen = ending(cuts, epochs=4)
    told = heard(runs, Event.EPOCH_END)

    state = runs.run()

    assert same(seen, expected(cuts, 4))
    assert (state.step, state.epoch, state.max_steps) == (2 + 5 + 1 + 5, 4, 13)
    assert (state.samples, state.epoch_length, len(told)) == (13 * BATCH, LENGTH, 4)


@pytest.mark.row("D22")
@pytest.mark.parametrize(
    ("bounds", "steps", "epochs"),
    [
        ({"epochs": 3}, 11, 3),
        ({"steps": 12}, 12, 3),
        ({"epochs": 3, "steps": 10}, 10, 2),
        ({"epochs": 2, "steps": 10}, 6, 2),
        ({"steps": 6}, 6, 2),
        ({"samples": 5 * BATCH}, 5, 1),
    ],
)
def test_the_bound_that_is_reached_first_ends_the_run(
    bounds: dict[str, int], steps: int, epochs: int
) -> None:
    runs, seen = ending({0: 1}, **bounds)

    state = runs.run()

    assert (state.step, state.epoch, len(seen)) == (steps, epochs, steps)
    assert state.max_steps in (steps, None)


cut = st.dictionaries(st.integers(0, 3), st.integers(1, LENGTH), max_size=4)


@settings(max_examples=12)
@given(cuts=cut, at=st.integers(1, 20), in_epochs=st.booleans(), bound=st.integers(3, 30))
@example(cuts={0: 2}, at=2, in_epochs=True, bound=30)
@example(cuts={0: 2}, at=3, in_epochs=True, bound=30)
@example(cuts={0: 1, 1: 1, 2: 1, 3: 1}, at=4, in_epochs=False, bound=4)
@pytest.mark.row("D22")
def test_a_run_resumes_from_any_step_to_the_same_bits(
    cuts: Cuts, at: int, in_epochs: bool, bound: int
) -> None:
    def made() -> tuple[Engine, list[tuple[int, Tensor]]]:
        unit = "epoch" if in_epochs else "step"
        schedule = WarmupCosine(warmup_ratio=0.2, unit=unit)  # type: ignore[arg-type]
        return ending(cuts, schedule=schedule, epochs=4, steps=bound)

    whole, seen = made()
    whole.run()
    first, before = made()
    first.on("step_end", every=at)(lambda: first.stop("it is killed here", interrupts=True))
    first.run()
    second, after = made()
    restore(second, kept(first))
    second.run()

    assert same(before + after, seen) and same(seen, expected(cuts, 4, steps=bound))
    assert same_bits(capture_state(second), capture_state(whole))
    assert second.state.max_steps == whole.state.max_steps


def test_a_checkpoint_of_the_end_of_an_ended_epoch_resumes_with_the_next_one() -> None:
    cuts = {0: 2, 1: 3}
    whole, seen = ending(cuts, epochs=3)
    parts: list[Any] = []
    whole.on("epoch_end")(lambda: parts.append(kept(whole)))
    whole.run()

    second, after = ending(cuts, epochs=3)
    restore(second, parts[0])
    second.run()

    assert same(after, seen[2:]) and same_bits(capture_state(second), capture_state(whole))


def test_a_schedule_of_epochs_goes_on_with_the_next_epoch() -> None:
    rates: list[tuple[int, float]] = []
    halved = WarmupCosine(warmup_epochs=4, start=0.0, unit="epoch")
    runs, _ = ending({0: 1, 2: 2}, schedule=halved, epochs=4)
    runs.on("step_end")(lambda: rates.append((runs.state.epoch, runs.process.backward.lr)))  # type: ignore[attr-defined]

    runs.run()

    plain: list[tuple[int, float]] = []
    whole, _ = ending({}, schedule=WarmupCosine(warmup_epochs=4, start=0.0, unit="epoch"), epochs=4)
    whole.on("step_end")(lambda: plain.append((whole.state.epoch, whole.process.backward.lr)))  # type: ignore[attr-defined]
    whole.run()
    assert dict(rates) == dict(plain) and len(set(dict(plain).values())) == 4


def test_a_schedule_of_steps_ends_where_the_run_does() -> None:
    runs, _ = ending({0: 1, 1: 1}, schedule=WarmupCosine(warmup_steps=1, final=0.0), epochs=4)

    runs.run()

    assert runs.process.backward.rate.total == runs.state.step == 12  # type: ignore[attr-defined]
    assert runs.process.backward.rate.read()[""] == pytest.approx(0.0, abs=1e-9)  # type: ignore[attr-defined]


def test_asked_between_two_epochs_it_does_nothing() -> None:
    runs, seen = ending({}, epochs=2)
    runs.on("epoch_end")(runs.end_epoch)
    runs.end_epoch()

    runs.run()

    assert len(seen) == 2 * LENGTH


def test_asked_as_an_epoch_begins_it_ends_after_one_step() -> None:
    runs, seen = ending({}, epochs=3)
    runs.on("epoch_begin")(runs.end_epoch)

    runs.run()

    assert [epoch for epoch, _ in seen] == [0, 1, 2]


def test_a_stop_of_the_run_outweighs_the_end_of_an_epoch() -> None:
    runs, seen = ending({0: 2}, epochs=3)
    runs.on("step_end", every=2)(lambda: runs.stop("enough"))

    state = runs.run()

    assert (len(seen), state.step, state.epoch, state.stop.reason) == (2, 2, 1, "enough")


def test_a_loop_by_hand_ends_an_epoch_after_the_step() -> None:
    runs = engine(supervised(), Loader(points(SIZE), batch_size=BATCH), epochs=2)
    counts = []
    for inputs, target in runs:
        runs.backward(nn.functional.mse_loss(runs.process.model(inputs), target))
        counts.append(runs.state.epoch)
        if runs.state.epoch == 0:
            runs.end_epoch()

    assert counts == [0, 1, 1, 1, 1, 1]


def test_steps_that_wait_on_the_device_are_fetched_before_an_epoch_is_ended() -> None:
    cuts = {0: 2}
    runs, seen = ending(cuts, epochs=2, deferred=True)
    plain, _ = ending(cuts, epochs=2)

    state = runs.run()
    plain.run()

    assert same(seen, expected(cuts, 2)) and state.step == 7
    assert same_bits(capture_state(runs)["model"], capture_state(plain)["model"])


# ----------------------------------------------------------------------------------- sources of all kinds


class Endless(torch.utils.data.IterableDataset[Any]):
    """A stream that does not tell its length."""

    def __iter__(self) -> Iterator[Any]:
        yield from points(SIZE)


def source(kind: str) -> Any:
    match kind:
        case "list":
            inputs, targets = points(SIZE).tensors
            return list(zip(inputs.split(BATCH), targets.split(BATCH), strict=True))
        case "torch":
            return DataLoader(points(SIZE), batch_size=BATCH, shuffle=True)
        case "endless":
            return DataLoader(Endless(), batch_size=BATCH)
        case "stream":
            stages = [SequenceWrapper(points(SIZE)), streams.Shuffle(8), streams.Batch(BATCH)]
            return StreamLoader(chain(stages))
        case _:
            return Loader(
                TensorDataset(*points(SIZE).tensors), batch_size=BATCH, shuffle=True, workers=2
            )


@pytest.mark.parametrize(
    "kind",
    ["list", "torch", "endless", "stream", pytest.param("workers", marks=pytest.mark.slow)],
)
def test_data_of_every_kind_begin_anew_and_resume(kind: str) -> None:
    cuts = {0: 2, 1: 1}
    plain, whole_epochs = ending({}, source(kind), epochs=3)
    plain.run()
    whole, seen = ending(cuts, source(kind), epochs=3)
    whole.run()
    first, before = ending(cuts, source(kind), epochs=3)
    first.on("step_end", every=3)(lambda: first.stop("it is killed here", interrupts=True))
    first.run()
    second, after = ending(cuts, source(kind), epochs=3)
    restore(second, kept(first))
    second.run()

    begun = [whole_epochs[at] for at in (0, 1, 5, 10, 11, 12, 13, 14)]
    assert same(seen, begun) and same(before + after, seen)
    assert same_bits(capture_state(second)["model"], capture_state(whole)["model"])
