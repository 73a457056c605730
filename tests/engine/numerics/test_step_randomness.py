"""Draws of a training step are a function of the seed and the step, for every generator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from assay.core.events import At, Event, Handler
from assay.core.facts import Warned
from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.engine.data.adopt import as_source
from assay.engine.data.source import StatefulData
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.numerics.seed import WATCHED_STEPS, StepRandomness, restore_generators, seed_all
from engine.toys import same_bits


class Drawing(nn.Module):
    """Adds numbers of all three generators to what a layer gives, from forward pass `begin` on."""

    def __init__(self, begin: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.begin = begin
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        noise = torch.rand(()) if self.passes > self.begin else torch.zeros(())
        if self.passes > self.begin:
            noise = noise + random.random() + float(np.random.rand())
        return self.layer(x) + noise


class Points:
    def __init__(self, n: int = 60) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        x = torch.tensor([float(index), 1.0]) / 60 + 0.1 * torch.rand(2)
        return x + random.random() + float(np.random.rand()), x.sum()[None]


def engine(
    data: Any = None, *, begin: int = 0, epochs: int = 3, handlers: Any = (), **options: Any
) -> Engine:
    torch.manual_seed(0)
    model = Drawing(begin)
    process = Supervised(
        model, nn.MSELoss(), backward=OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1))
    )
    data = data if data is not None else Loader(Points(), batch_size=4, shuffle=True, seed=1)
    return Engine(process, data, epochs=epochs, seed=1, handlers=handlers, **options)


def stop_at(step: int) -> Handler:
    return Handler(
        event=Event.STEP_END, fn=lambda engine: engine.stop("x"), when=At(frozenset({step}))
    )


def resumed(make: Callable[..., Engine], step: int) -> Any:
    """Return the end of a run stopped after a step and resumed, with foreign draws in between."""
    first = make(handlers=[stop_at(step)])
    first.run()
    random.seed(step)
    np.random.seed(step)
    torch.manual_seed(step)
    second = make()
    restore(second, capture_state(first))
    second.run()
    return capture_state(second)


@pytest.mark.parametrize("step", [1, 14, 15, 16, 44])
def test_a_model_that_draws_from_numpy_and_random_goes_on_exactly(step: int) -> None:
    whole = engine()
    whole.run()

    assert same_bits(resumed(engine, step), capture_state(whole))
    assert whole.state.draws


def test_a_run_that_draws_from_neither_leaves_them_alone_after_the_first_steps() -> None:
    class Quiet:
        drawn: list[tuple[float, float]] = []  # noqa: RUF012 - of this test alone

    def look() -> None:
        Quiet.drawn.append((float(np.random.rand()), random.random()))

    handler = Handler(event=Event.STEP_END, fn=look)
    runs = engine(begin=10**9, epochs=8, handlers=[handler])
    runs.run()

    keyed = Quiet.drawn[:WATCHED_STEPS]
    assert len(set(keyed)) == WATCHED_STEPS
    assert not runs.state.draws  # a handler is no part of training


def test_what_begins_to_draw_later_is_noticed_at_the_next_look_and_told() -> None:
    class Heard:
        def __init__(self) -> None:
            self.told: list[Any] = []

        def log(self, points: Any, step: int) -> None: ...

        def tell(self, fact: Any) -> None:
            self.told.append(fact)

    heard = Heard()
    runs = engine(begin=WATCHED_STEPS + 20, epochs=10, recorder=heard)
    runs.run()

    (warned,) = [fact for fact in heard.told if isinstance(fact, Warned)]
    assert runs.state.draws
    assert (
        warned.step == 2 * WATCHED_STEPS and "begun to draw from numpy or random" in warned.message
    )


# -------------------------------------------------------------------------------------------- other sources of batches


@pytest.mark.parametrize("step", [1, 7, 15, 22])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_data_loader_of_torch_that_shuffles_and_augments_goes_on_exactly(
    step: int, accumulate: int
) -> None:
    def make(**options: Any) -> Engine:
        data: Any = DataLoader(Points(), batch_size=4 // accumulate, shuffle=True)  # type: ignore[arg-type]
        return engine(data, accumulate=accumulate, **options)

    whole = make()
    whole.run()

    assert whole.source.exactness() == "exact (plan)"
    assert same_bits(resumed(make, step), capture_state(whole))


class Counting:
    """Batches with a state of their own, which counts how many were made."""

    made = 0

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        for at in range(self.at, 15):
            self.at = at + 1
            type(self).made += 1
            x = torch.full((4, 2), at / 15)
            yield x, x.sum(1, keepdim=True)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("step", [1, 14, 15, 16, 29])
def test_batches_with_a_state_go_on_from_it_without_going_through_what_was(step: int) -> None:
    def make(**options: Any) -> Engine:
        return engine(Counting(), **options)

    whole = make()
    whole.run()
    assert (
        isinstance(whole.source, StatefulData) and whole.source.exactness() == "exact (state_dict)"
    )
    Counting.made = 0

    assert same_bits(resumed(make, step), capture_state(whole))
    assert Counting.made == 45  # whether a loaded state goes on is tried in copies of this process


def test_an_iterator_says_that_nobody_can_go_on_with_it() -> None:
    assert (
        as_source(iter([1])).exactness() == "not exact: an iterator can be gone through once only"
    )


def test_samplers_inside_a_loader_are_told_the_epoch() -> None:
    class Sampler:
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

        def __len__(self) -> int:
            return 4

    sampler = Sampler()
    loader: Any = DataLoader(Points(4), batch_size=2, sampler=sampler)  # type: ignore[arg-type]

    source = as_source(loader)
    for epoch in (0, 1, 2):
        list(source.windows(epoch, 0))

    assert list(dict.fromkeys(sampler.epochs)) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------------------ counting


@pytest.mark.row("E31")
def test_samples_are_counted_and_a_run_goes_on_by_them_when_the_batch_has_changed() -> None:
    seen: list[int] = []

    class Indices:
        randomness = "none"

        def __len__(self) -> int:
            return 640

        def __getitem__(self, index: int) -> Any:
            return torch.tensor([index / 640, 1.0]), torch.zeros(1)

    def make(batch_size: int, **options: Any) -> Engine:
        data = Loader(Indices(), batch_size=batch_size, shuffle=True, seed=1)
        runs = engine(data, epochs=2, **options)

        @runs.on("backward_begin")
        def keep(state: Any) -> None:
            seen.extend(round(float(value) * 640) for value in state.batch[0][:, 0])

        return runs

    first = make(32, handlers=[stop_at(10)])
    first.run()
    assert first.state.consumed_train_samples == 320
    second = make(48)
    restore(second, capture_state(first))

    state = second.run()

    assert state.consumed_train_samples == 2 * 640 == len(seen)
    assert sorted(seen[:640]) == sorted(seen[640:]) == list(range(640))
    assert (state.epoch, state.step, state.max_steps) == (2, 10 + 7 + 14, 31)


DRAWS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "random.random": random.random,
    "random.gauss": lambda: random.gauss(0, 1),
    "all words of random at once": lambda: [random.getrandbits(32) for _ in range(624)],
    "random.seed": lambda: random.seed(7),
    "numpy.rand": np.random.rand,
    "numpy.randn": np.random.randn,
    "all words of numpy at once": lambda: np.random.randint(0, 2**32, 624, np.uint32),
    "numpy.seed": lambda: [np.random.seed(7), np.random.rand()],
    "torch.rand": lambda: torch.rand(1),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_in_a_watched_step_is_seen(draw: str) -> None:
    randomness = StepRandomness(seed=5)

    with restore_generators():
        randomness.begin(step=3)
        DRAWS[draw]()
        seen = randomness.end()

    assert seen is (draw not in ("nothing", "torch.rand"))


def test_random_is_keyed_as_its_own_seed_does_it() -> None:
    with restore_generators():
        random.seed(2**63 + 5)
        random.gauss(0, 1)
        seed_all(2**63 + 5)
        ours = [random.gauss(0, 1), random.random()]
        random.seed(2**63 + 5)
        assert ours == [random.gauss(0, 1), random.random()]
