"""A data set that gives one sample after the other is loaded once, whatever its workers do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from assay.core.errors import InputError
from assay.engine import Engine
from assay.engine.data.adopt import as_source
from assay.engine.data.worker_shares import MOST, share_out
from assay.engine.loop.engine_state import restore
from engine.toys import kept, supervised

SIZE = 24
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def sample(index: int) -> tuple[Tensor, Tensor]:
    return torch.full((4,), float(index)), torch.zeros(2)


class Whole(IterableDataset[Any]):
    """Knows nothing of workers."""

    def indices(self) -> Any:
        return range(SIZE)

    def __iter__(self) -> Iterator[Any]:
        return map(sample, self.indices())


class Sized(Whole):
    def __len__(self) -> int:
        return SIZE


class Augmented(Whole):
    def __iter__(self) -> Iterator[Any]:
        for i in self.indices():
            x, y = sample(i)
            yield x, y + torch.rand(2)


class AllNoise(Whole):
    """Leaves nothing of a sample as it is."""

    def __iter__(self) -> Iterator[Any]:
        return (sample(i)[0] + torch.rand(4) for i in self.indices())


class Generator(Whole):
    """Is a generator, with a hidden `seek`."""

    def __iter__(self) -> Iterator[Any]:
        for i in self.indices():
            yield sample(i)


class Named(Whole):
    def __iter__(self) -> Iterator[Any]:
        return ({"x": sample(i)[0]} for i in self.indices())


class Split(Whole):
    def indices(self) -> Any:
        info = get_worker_info()
        return range(SIZE) if info is None else range(info.id, SIZE, info.num_workers)


class InBlocks(Whole):
    def indices(self) -> Any:
        info = get_worker_info()
        if info is None:
            return range(SIZE)
        size = -(-SIZE // info.num_workers)
        return range(info.id * size, min(SIZE, (info.id + 1) * size))


class ByInit(Whole):
    """Is split by `worker_init_fn`."""

    start, step = 0, 1

    def indices(self) -> Any:
        return range(self.start, SIZE, self.step)


def init(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.start, info.dataset.step = number, info.num_workers


class SplitAndShuffled(Split):
    def indices(self) -> Any:
        indices = list(super().indices())
        random.shuffle(indices)
        return indices


class Shuffled(Whole):
    def indices(self) -> Any:
        return random.sample(range(SIZE), SIZE)


class ShuffledByTorch(Whole):
    def indices(self) -> Any:
        return torch.randperm(SIZE).tolist()


class Made(Whole):
    """Makes samples by chance, without an end."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.rand(4), torch.rand(2)


class Fixed(Whole):
    """Gives equal samples."""

    def indices(self) -> Any:
        return [1] * SIZE


class FixedAndSplit(Split):
    def indices(self) -> Any:
        return [1 for _ in super().indices()]


ONCE = [Whole, Sized, Augmented, Generator, Named, Split, InBlocks, SplitAndShuffled]
LEFT = [Split, InBlocks, SplitAndShuffled, Made, FixedAndSplit]
REFUSED = [Shuffled, ShuffledByTorch, AllNoise]


def seen(data: Any) -> list[int]:
    batches = (batch["x"] if isinstance(batch, dict) else batch[0] for batch in data)
    return sorted(round(float(row[0])) for batch in batches for row in batch)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ONCE, ids=lambda kind: kind.__name__)
def test_each_sample_comes_once(kind: Callable[[], Any], workers: int) -> None:
    data = share_out(DataLoader(kind(), batch_size=4, num_workers=workers))

    assert seen(data) == list(range(SIZE))


@pytest.mark.parametrize("kind", LEFT, ids=lambda kind: kind.__name__)
def test_a_data_set_that_does_not_give_all_in_each_worker_is_left_as_it_is(kind: Any) -> None:
    data = DataLoader(kind(), batch_size=4, num_workers=2)

    assert share_out(data) is data


def test_equal_samples_are_counted() -> None:
    assert len(seen(share_out(DataLoader(Fixed(), batch_size=4, num_workers=2)))) == SIZE


def test_a_data_set_that_is_split_by_the_init_of_its_workers_is_left_as_it_is() -> None:
    data = DataLoader(ByInit(), batch_size=4, num_workers=2, worker_init_fn=init)

    assert share_out(data) is data


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_workers_that_shuffle_all_samples_are_refused_with_the_way_to_split_them(kind: Any) -> None:
    with pytest.raises(InputError, match=f"{kind.__name__} gives all of its samples") as caught:
        share_out(DataLoader(kind(), batch_size=4, num_workers=2), split="valid")

    assert "get_worker_info" in caught.value.fix and "data.valid" in caught.value.what


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loader_with_a_state_of_its_workers_is_refused_where_it_would_have_to_be_split() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    with pytest.raises(InputError, match="gives all of its samples"):
        as_source(stateful(Whole(), batch_size=4, num_workers=2)).exactness()


def test_a_source_says_that_it_shares_the_samples_out_and_trains_on_each_once() -> None:
    source = as_source(DataLoader(Whole(), batch_size=4, num_workers=2))

    assert source.exactness() == (
        "exact (replayed: Whole gives all in each worker, which is left its share)"
    )
    batches = [window.batches[0] for window in source.windows(0, 0)]
    assert seen(batches) == list(range(SIZE))
    assert seen([window.batches[0] for window in source.windows(0, 2)]) == seen(batches[2:])


class ManyShuffled(Whole):
    def indices(self) -> Any:
        return random.sample(range(MOST + 1), MOST + 1)


class ManySplitAndShuffled(SplitAndShuffled):
    """Has an order that no key decides, and its own share of each worker."""

    def indices(self) -> Any:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        indices = list(range(start, 3 * MOST, step))
        random.shuffle(indices)
        return indices


@pytest.mark.parametrize("kind", [ManyShuffled, Made], ids=lambda kind: kind.__name__)
def test_of_more_samples_than_are_counted_nothing_exact_is_said(kind: Any) -> None:
    source = as_source(DataLoader(kind(), batch_size=4, num_workers=2))

    assert source.exactness().startswith(
        f"unknown: each of 2 workers may give all of {kind.__name__}"
    )


def test_many_samples_that_are_split_are_exact() -> None:
    source = as_source(DataLoader(ManySplitAndShuffled(), batch_size=4, num_workers=2))

    assert source.exactness() == "exact (replayed)"


def test_what_a_data_set_has_besides_is_reached_through_its_share() -> None:
    class Epochs(Whole):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    data = Epochs()

    list(islice(as_source(DataLoader(data, batch_size=4, num_workers=2)).windows(3, 0), 1))

    assert data.epoch == 3


# ------------------------------------------------------------------------- another number of workers


def engine(workers: int, data: Any = None) -> Engine:
    data = DataLoader(data or Split(), batch_size=4, num_workers=workers)
    return Engine(supervised(), data, epochs=2, seed=3)


@pytest.mark.parametrize(("then", "now"), [(2, 0), (0, 2), (2, 3)])
def test_a_resume_with_another_number_of_workers_is_refused(then: int, now: int) -> None:
    part = kept(engine(then))

    with pytest.raises(InputError, match=f"loaded by {then} workers, not {now}") as caught:
        restore(engine(now), part)

    assert f"data.train.workers = {then}" in caught.value.fix
    restore(engine(then), part)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_so_it_is_for_a_loader_with_a_state_of_its_own() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def made(workers: int) -> Engine:
        data = stateful(Split(), batch_size=4, num_workers=workers)
        return Engine(supervised(), data, epochs=2, seed=3)

    with pytest.raises(InputError, match="loaded by 2 workers, not 0"):
        restore(made(0), kept(made(2)))


def test_items_by_index_are_resumed_with_any_number_of_workers() -> None:
    data = torch.utils.data.TensorDataset(torch.rand(8, 4), torch.rand(8, 2))
    first = Engine(supervised(), DataLoader(data, batch_size=4, num_workers=2), epochs=2)
    second = Engine(supervised(), DataLoader(data, batch_size=4), epochs=2)

    restore(second, kept(first))
