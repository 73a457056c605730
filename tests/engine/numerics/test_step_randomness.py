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
from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.engine.data.adopt import as_source
from assay.engine.data.source import StatefulData
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.numerics.seed import restore_generators, seed_all
from engine.toys import same_bits


class Drawing(nn.Module):
    """Adds numbers of all three generators to what a layer gives, from forward pass `begin` on."""

    def __init__(self, begin: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.begin = begin
        self.passes = nn.Buffer(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes <= self.begin:
            return self.layer(x)
        return self.layer(x) + torch.rand(()) + random.random() + float(np.random.rand())


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


@pytest.mark.parametrize("begin", [0, 71])
@pytest.mark.parametrize("step", [1, 14, 15, 70, 80])
def test_a_model_that_draws_goes_on_exactly_whenever_it_begins_to_draw(
    begin: int, step: int
) -> None:
    def make(**options: Any) -> Engine:
        return engine(begin=begin, epochs=6, **options)

    whole = make()
    whole.run()

    assert same_bits(resumed(make, step), capture_state(whole))


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
    assert Counting.made == 45


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


def test_random_is_keyed_as_its_own_seed_does_it() -> None:
    with restore_generators():
        random.seed(2**63 + 5)
        random.gauss(0, 1)
        seed_all(2**63 + 5)
        ours = [random.gauss(0, 1), random.random()]
        random.seed(2**63 + 5)
        assert ours == [random.gauss(0, 1), random.random()]
