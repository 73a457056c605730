"""Epochs end with their data, whatever that says of its length; schedules and bars follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from assay.core.facts import Warned
from assay.core.ports import NullRecorder
from assay.engine import Engine, Loader, OptimizerStep, Supervised, WarmupCosine, WarmupStep
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.data.streams.stream import IterableStream
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import hard_net, kept, points, same_bits

SIZE = 16
WHOLE = points(SIZE)
LENGTHS = {
    "growing": (2, 4, 8),
    "shrinking": (8, 4, 2),
    "changing once": (2, 8, 8),
    "as ever": (4, 4, 4),
}


class Says:
    """Iterable of as many batches as `lengths` has for the epoch, that says what `claim` does."""

    def __init__(self, lengths: tuple[int, ...], claim: Callable[[Any], int] | None) -> None:
        self.lengths, self.claim, self.epoch = lengths, claim, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        size = SIZE // self.lengths[self.epoch]
        for start in range(0, SIZE, size):
            yield WHOLE[start : start + size]


class SaysIt(Says):
    """The same with a length."""

    def __len__(self) -> int:
        assert self.claim is not None
        return self.claim(self)


class Stream(IterableDataset[Any]):
    """A data set of torch that gives whole batches, and has a wrong length."""

    def __init__(self, says: Says) -> None:
        self.says = says

    def set_epoch(self, epoch: int) -> None:
        self.says.set_epoch(epoch)

    def __len__(self) -> int:
        return self.says.lengths[0]

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        info = torch.utils.data.get_worker_info()
        batches = list(self.says)
        return iter(batches if info is None else batches[info.id :: info.num_workers])


class Buckets:
    """Batch sampler, of which every epoch has another number of batches."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths, self.epoch = lengths, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.lengths[self.epoch]

    def __iter__(self) -> Iterator[list[int]]:
        size = SIZE // len(self)
        return iter([list(range(start, start + size)) for start in range(0, SIZE, size)])


class Chosen(Buckets):
    """Sampler, of which every epoch has another number of samples."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(2 * len(self)))


class Grows:
    """Map-style data set, of which every epoch has another number of samples."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths, self.epoch = lengths, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 2 * self.lengths[self.epoch]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        assert index < len(self)
        return WHOLE[index]


def own(claim: Callable[[Any], int] | None) -> Callable[[tuple[int, ...]], Iterable[Any]]:
    return lambda lengths: Says(lengths, None) if claim is None else SaysIt(lengths, claim)


LOADERS: dict[str, Callable[[tuple[int, ...]], Iterable[Any]]] = {
    "true": own(lambda it: it.lengths[it.epoch]),
    "of the first epoch": own(lambda it: it.lengths[0]),
    "too small": own(lambda it: 1),
    "too large": own(lambda it: 100),
    "of the epoch before": own(lambda it: it.lengths[max(0, it.epoch - 1)]),
    "unknown": own(None),
    "batch sampler": lambda lengths: Loader(WHOLE, batch_sampler=Buckets(lengths)),
    "batch sampler, workers": lambda lengths: Loader(
        WHOLE, batch_sampler=Buckets(lengths), workers=1
    ),
    "sampler": lambda lengths: Loader(WHOLE, batch_size=2, sampler=Chosen(lengths)),
    "data set": lambda lengths: Loader(Grows(lengths), batch_size=2, shuffle=True),
    "data set, workers": lambda lengths: Loader(
        Grows(lengths), batch_size=2, shuffle=True, workers=1, persistent_workers=False
    ),
    "data set of torch": lambda lengths: DataLoader(Grows(lengths), batch_size=2, shuffle=True),  # type: ignore[arg-type]
    "torch": lambda lengths: DataLoader(WHOLE, batch_sampler=Buckets(lengths)),
    "stream of torch": lambda lengths: DataLoader(Stream(Says(lengths, None)), batch_size=None),
    "stream of torch, workers": lambda lengths: DataLoader(
        Stream(Says(lengths, None)), batch_size=None, num_workers=2
    ),
    "pipes": lambda lengths: StreamLoader(IterableStream(SaysIt(lengths, lambda it: 3))),
}


class Heard(NullRecorder):
    """Recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def tell(self, event: Any) -> None:
        if isinstance(event, Warned) and "expected" in event.message:
            self.words.append(event.message)


def training(
    train: Iterable[Any], *, schedule: Any = None, **given: Any
) -> tuple[Engine, list[float], Heard]:
    """Return an engine, the rates of its updates, and what it says of its length."""
    model = hard_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    backward = OptimizerStep(optimizer, schedule=schedule)
    heard = Heard()
    runs = Engine(
        Supervised(model, nn.MSELoss(), backward=backward), train, seed=3, recorder=heard, **given
    )
    rates: list[float] = []
    runs.on("step_end", priority=-1)(lambda: rates.append(backward.rates[""]))
    return runs, rates, heard


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("loader", LOADERS)
def test_every_epoch_ends_with_its_data_and_a_resumed_run_makes_the_same(
    loader: str, lengths: tuple[int, ...]
) -> None:
    def made() -> tuple[Engine, list[float], Heard]:
        data = LOADERS[loader](lengths)
        return training(data, schedule=_schedule(loader), epochs=3)

    whole, rates, heard = made()
    ends: list[int] = []
    whole.on("epoch_end")(lambda: ends.append(whole.state.step))
    whole.run()

    assert ends == [sum(lengths[: i + 1]) for i in range(3)]
    assert whole.state.max_steps == whole.state.step
    assert len(heard.words) <= 1
    for at in {lengths[0] + 1} if "workers" in loader else {1, lengths[0], sum(lengths) - 1}:
        first, before, _ = made()
        first.on("step_end", every=at)(lambda first=first: first.stop("killed", interrupts=True))
        first.run()
        second, after, _ = made()
        restore(second, kept(first))
        second.run()

        assert before + after == rates
        assert same_bits(capture_state(second), capture_state(whole))


def _schedule(loader: str) -> Any:
    """Return a schedule that follows the length of the run, where that is known before."""
    if loader == "unknown":
        return WarmupStep(3, warmup_steps=2)
    return WarmupCosine(final=0.1)


@pytest.mark.parametrize(
    ("claim", "how"), [(lambda it: it.lengths[0], "stretched"), (lambda it: 100, "squeezed")]
)
def test_a_schedule_that_follows_another_length_says_so_once(
    claim: Callable[[Any], int], how: str
) -> None:
    runs, rates, heard = training(
        SaysIt((2, 4, 8), claim), schedule=WarmupCosine(final=0.1), epochs=3
    )

    runs.run()

    (said,) = heard.words
    assert f"The schedule is {how} to that" in said
    assert rates[-1] < 0.02  # it has come to the end with the run
    assert len(rates) == 14


def test_a_length_that_holds_is_not_spoken_of() -> None:
    runs, _, heard = training(
        SaysIt((4, 4, 4), lambda it: 4), schedule=WarmupCosine(final=0.1), epochs=3
    )

    runs.run()

    assert heard.words == []


def test_a_wrong_length_is_said_without_a_schedule_too() -> None:
    runs, _, heard = training(SaysIt((4, 4, 4), lambda it: 3), epochs=3)

    runs.run()

    (said,) = heard.words
    assert said.startswith("data.train: an epoch has at least 4 steps, and 3 were expected.")
    assert "schedule" not in said


@pytest.mark.parametrize("claim", [2, 8, 100])
def test_a_schedule_of_epochs_changes_at_their_ends(claim: int) -> None:
    schedule = WarmupStep(1, gamma=0.5, unit="epoch")
    runs, rates, _ = training(SaysIt((2, 4, 8), lambda it: claim), schedule=schedule, epochs=3)

    runs.run()

    assert rates == [0.1] * 2 + [0.05] * 4 + [0.025] * 8


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_run_that_is_stopped_where_an_epoch_was_to_end_resumes_within_it(at: int) -> None:
    def made(**given: Any) -> tuple[Engine, list[float], Heard]:
        return training(SaysIt((4, 4), lambda it: 3), epochs=2, **given)

    whole, _, _ = made()
    whole.run()
    first, _, _ = made(max_steps=at)
    first.run()
    second, _, _ = made()
    restore(second, kept(first))
    second.run()

    assert first.state.step == at
    assert first.state.epoch == (1 if at == 4 else 0)
    assert same_bits(capture_state(second), capture_state(whole))


def test_the_expected_steps_follow_the_epochs() -> None:
    runs, _, _ = training(SaysIt((2, 4, 8), lambda it: 2), epochs=3)
    expected: list[int | None] = []
    runs.on("step_end")(lambda: expected.append(runs.state.max_steps))

    runs.run()

    assert expected[:3] == [6, 6, 6] and expected[-1] == 14
    assert all(now is not None and now >= step for step, now in enumerate(expected, 1))
