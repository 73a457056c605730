"""Data that is told of each epoch: bare, wrapped, in workers, and after a resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    default_collate,
)

from assay.engine import Engine, Loader, OptimizerStep, Supervised
from assay.engine.data.stream_loader import StreamLoader
from assay.engine.data.streams.stream import IterableStream, SequenceStream
from assay.engine.loop.engine_state import restore
from engine.toys import kept

SIZE = 8


class Told:
    """Something that keeps the newest epoch that it was told of."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Rows(Told, Dataset[Any]):
    """Data set whose samples say which epoch it was told of."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= SIZE:
            raise IndexError
        return torch.full((4,), float(self.epoch)), torch.zeros(2)


class Slotted:
    """The same with slots, of which there are no weak references."""

    __slots__ = ("epoch",)

    def __init__(self) -> None:
        self.epoch = -1

    set_epoch = Told.set_epoch
    __len__ = Rows.__len__
    __getitem__ = Rows.__getitem__


class Mapped(Dataset[Any]):
    """Data set that leaves its samples to something inside it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((4,), float(self.inner.epoch)), torch.zeros(2)


class Stream(Told, IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for _ in range(SIZE):
            yield torch.full((4,), float(self.epoch)), torch.zeros(2)


class Says(Told, Sampler[int]):
    """Sampler that gives the epoch as an index."""

    def __init__(self) -> None:
        Told.__init__(self)

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * SIZE)

    def __len__(self) -> int:
        return SIZE


class Outer(Sampler[int]):
    """Sampler around another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.inner))

    def __len__(self) -> int:
        return SIZE


class Numbers(Dataset[Any]):
    """Samples that are their index."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((4,), float(index)), torch.zeros(2)


class Own(DataLoader[Any]):
    """A DataLoader that iterates in a way of its own."""

    def __iter__(self) -> Any:
        return super().__iter__()


class Collate(Told):
    def __call__(self, samples: list[Any]) -> list[Tensor]:
        inputs, targets = default_collate(samples)
        return [torch.full_like(inputs, float(self.epoch)), targets]


def _collate(told: Told, samples: list[Any]) -> Any:
    inputs, targets = default_collate(samples)
    return [torch.full_like(inputs, float(told.epoch)), targets]


DATASETS: dict[str, Callable[[], Any]] = {
    "bare": Rows,
    "slots": Slotted,
    "Subset": lambda: Subset(Rows(), range(SIZE)),
    "ConcatDataset": lambda: ConcatDataset([Rows(), Rows()]),
    "nested": lambda: Subset(ConcatDataset([Subset(Rows(), range(4)), Rows()]), range(12)),
    "random_split": lambda: torch.utils.data.random_split(Rows(), [4, 4])[0],
    "transform": lambda: Mapped(Told()),
}
PLAIN: dict[str, Callable[..., Any]] = {
    "Loader": partial(Loader, batch_size=4),
    "DataLoader": lambda data, workers=0, persistent_workers=False: DataLoader(
        data,
        batch_size=4,
        num_workers=workers,
        persistent_workers=persistent_workers and bool(workers),
    ),
    "DataLoader of its own": lambda data, workers=0, persistent_workers=False: Own(
        data,
        batch_size=4,
        num_workers=workers,
        persistent_workers=persistent_workers and bool(workers),
    ),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "collate": lambda: Loader(Numbers(), batch_size=4, collate=Collate()),
    "partial collate": lambda: Loader(Numbers(), batch_size=4, collate=partial(_collate, Told())),
    "sampler": lambda: Loader(Numbers(), batch_size=4, sampler=Says()),
    "sampler inside": lambda: Loader(Numbers(), batch_size=4, sampler=Outer(Outer(Says()))),
    "sampler of torch": lambda: DataLoader(Numbers(), batch_size=4, sampler=Outer(Says())),
    "data of a sampler": lambda: Loader(
        data := Rows(), batch_size=4, sampler=RandomSampler(data, num_samples=8)
    ),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "stream, workers": lambda: DataLoader(Stream(), batch_size=4, num_workers=1),
    "stream, workers that stay": lambda: DataLoader(
        Stream(), batch_size=4, num_workers=1, persistent_workers=True
    ),
    "pipes": lambda: StreamLoader(IterableStream(_Wrapper(DataLoader(Stream(), batch_size=4)))),
    "pipes of a sequence": lambda: StreamLoader(SequenceStream(_Batches())),
    "own": lambda: _Wrapper(DataLoader(Subset(Rows(), range(SIZE)), batch_size=4)),
}


class _Batches(Told):
    """Sequence of whole batches."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((4, 4), float(self.epoch)), torch.zeros(4, 2)


class _Wrapper:
    """Own iterable around a DataLoader."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return (tuple(batch) for batch in self.inner)


def training(train: Any, **given: Any) -> tuple[Engine, list[tuple[int, float]]]:
    """Return an engine, and for each step its epoch and the epoch that the batch says."""
    model = nn.Linear(4, 2)
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=1e-3))
    runs = Engine(Supervised(model, nn.MSELoss(), backward=backward), train, **given)
    seen: list[tuple[int, float]] = []

    @runs.on("step_end", priority=-1)
    def look() -> None:
        first = runs.state.batch[0]
        assert (first == first.flatten()[0]).all()
        seen.append((runs.state.epoch, float(first.flatten()[0])))

    return runs, seen


def check(make: Callable[[], Any]) -> None:
    loaders = [make(), make()]
    runs, seen = training(loaders[0], epochs=3)
    parts: list[Any] = []
    runs.on("step_end")(lambda: parts.append(kept(runs)))
    runs.run()

    assert {epoch for epoch, _ in seen} == {0, 1, 2}
    assert all(epoch == told for epoch, told in seen)
    resumed, after = training(loaders[1], epochs=3)
    restore(resumed, parts[len(seen) // 3])  # after the first step of the epoch 1
    resumed.run()
    assert after == seen[len(seen) // 3 + 1 :]
    for loader in loaders:
        if isinstance(loader, Loader):
            loader.close()


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("loader", PLAIN)
def test_a_data_set_is_told_of_each_epoch_however_it_is_wrapped(loader: str, dataset: str) -> None:
    check(lambda: PLAIN[loader](DATASETS[dataset]()))


@pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "workers that stay"])
@pytest.mark.parametrize("loader", PLAIN)
def test_every_worker_is_told_too(loader: str, persistent: bool) -> None:
    check(
        lambda: PLAIN[loader](Subset(Rows(), range(SIZE)), workers=2, persistent_workers=persistent)
    )


@pytest.mark.parametrize("kind", OTHERS)
def test_samplers_collate_and_streams_are_told_of_each_epoch(kind: str) -> None:
    check(OTHERS[kind])


def test_an_evaluation_of_a_part_of_the_data_leaves_its_epoch_alone() -> None:
    data = Rows()
    valid = Loader(Subset(data, range(4)), batch_size=4, split="valid")
    train = Loader(data, batch_size=2)
    runs, seen = training(train, epochs=2)
    runs.on("step_end")(lambda: list(valid))
    runs.on("step_end")(lambda: list(Loader(data, batch_size=4)))  # for another one, of epoch 0

    runs.run()

    assert all(epoch == told for epoch, told in seen)


def test_a_data_set_is_told_once_an_epoch() -> None:
    calls: list[int] = []

    class Counting(Rows):
        def set_epoch(self, epoch: int) -> None:
            calls.append(epoch)
            super().set_epoch(epoch)

    runs, _ = training(Loader(Subset(Counting(), range(SIZE)), batch_size=2), epochs=3)
    runs.run()

    assert calls == [0, 1, 2]
