"""Orders other than a shuffle: functions of seed, epoch and position, with the promised shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from assay.core.errors import InputError
from assay.engine.data.loader import Loader
from assay.engine.data.plan import Order
from assay.engine.data.samplers import Balanced, ByLength, Subset, Weighted, order_of, uniform


class Words:
    """Samples with a label, a length and a weight each; an item is its index."""

    def __init__(self, n: int = 40) -> None:
        self.n = n
        self.labels = [("rare" if i % 8 == 0 else "common") for i in range(n)]
        self.lengths = [(i * 7) % 23 + 1 for i in range(n)]
        self.weights = [float(i % 4) for i in range(n)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


SAMPLERS: dict[str, Any] = {
    "weighted": Weighted("weights", num_samples=57),
    "weighted once": Weighted("weights", replacement=False),
    "balanced": Balanced(),
    "by length": ByLength(window=3),
    "part": Subset(start=0.25, stop=0.75),
}


def made(sampler: Any, *, seed: int = 0, dataset: Any = None, batch_size: int = 4) -> Order:
    return order_of(
        sampler, dataset or Words(), seed=seed, batch_size=batch_size, name="data.train.sampler"
    )


def whole(order: Order, epoch: int = 0) -> list[int]:
    return order.indices(epoch, 0, order.n).tolist()


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=list(SAMPLERS))
@given(st.integers(0, 5), st.integers(0, 70), st.integers(0, 70))
def test_starting_anywhere_gives_what_running_there_would_have_given(
    sampler: Any, epoch: int, start: int, count: int
) -> None:
    order = made(sampler)

    assert (
        made(sampler).indices(epoch, start, count).tolist()
        == whole(order, epoch)[start : start + count]
    )


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=list(SAMPLERS))
def test_every_seed_and_every_epoch_has_an_order_of_its_own(sampler: Any) -> None:
    orders = [whole(made(sampler, seed=seed), epoch) for seed in range(3) for epoch in range(3)]

    assert len(set(map(tuple, orders))) == 9


def test_samples_come_as_often_as_they_weigh() -> None:
    counts = Counter(
        whole(made(Weighted([1.0, 2.0, 0.0, 5.0], num_samples=80_000), dataset=Words(4)))
    )

    assert counts[2] == 0
    for index, share in ((0, 1 / 8), (1, 2 / 8), (3, 5 / 8)):
        deviation = np.sqrt(80_000 * share * (1 - share))
        assert abs(counts[index] - 80_000 * share) < 4.5 * deviation


def test_without_replacement_each_comes_once_and_the_heavy_ones_early() -> None:
    order = made(Weighted([1.0, 0.0, 9.0], replacement=False), dataset=Words(3))

    assert order.n == 2
    firsts = Counter(whole(order, epoch)[0] for epoch in range(4000))
    assert {tuple(sorted(whole(order, epoch))) for epoch in range(20)} == {(0, 2)}
    assert abs(firsts[2] - 3600) < 4.5 * np.sqrt(4000 * 0.09)


def test_every_class_comes_equally_often_and_so_does_every_sample_of_a_class() -> None:
    words = Words(40)
    order = made(Balanced("labels", num_samples=140), dataset=words)

    for epoch in range(4):
        drawn = whole(order, epoch)
        assert Counter(words.labels[index] for index in drawn) == {"rare": 70, "common": 70}
    seen = Counter(index for epoch in range(4) for index in whole(order, epoch))
    assert {seen[index] for index in range(0, 40, 8)} == {56}  # 4 x 70 over five samples
    assert {seen[index] for index in range(40) if index % 8} == {8}  # over thirty-five


def test_in_any_stretch_of_a_balanced_order_classes_differ_by_one_at_most() -> None:
    words = Words(40)
    labels = [words.labels[index] for index in whole(made(Balanced()))]

    for end in range(0, 41, 2):
        assert Counter(labels[:end])["rare"] == end // 2


def test_batches_by_length_hold_samples_of_like_length_and_all_of_them() -> None:
    words = Words(230)
    order = made(ByLength("lengths", window=20), dataset=words, batch_size=8)
    drawn = whole(order)

    spreads = [np.ptp([words.lengths[i] for i in drawn[at : at + 8]]) for at in range(0, 224, 8)]
    assert sorted(drawn) == list(range(230))
    assert np.mean(spreads) < 4  # 20 in a plain shuffle
    means = [np.mean([words.lengths[i] for i in drawn[at : at + 8]]) for at in range(0, 160, 8)]
    assert means != sorted(means)  # which batch comes when is shuffled


def test_a_part_is_named_by_indices_by_places_or_by_shares() -> None:
    assert sorted(whole(made(Subset([3, 5, 7])))) == [3, 5, 7]
    assert whole(made(Subset(start=10, stop=13, shuffle=False))) == [10, 11, 12]
    assert whole(made(Subset(stop=0.1, shuffle=False))) == [0, 1, 2, 3]
    assert whole(made(Subset(start=0.9, shuffle=False))) == [36, 37, 38, 39]
    assert sorted(whole(made(Subset(stop=1.0)))) == list(range(40))


@pytest.mark.parametrize(
    ("sampler", "what"),
    [
        (Weighted("weigths"), "Words has no `weigths`"),
        (Weighted([1.0, 2.0]), "There are 2 weights for 40 samples"),
        (Weighted([-1.0] * 40), "none below 0"),
        (Weighted([0.0] * 40), "sum above 0"),
        (Weighted("weights", num_samples=31, replacement=False), "only 30 have a weight above 0"),
        (Balanced("label"), "Words has no `label`"),
        (Subset([3, 40]), "Subset names the sample 40, but there are 40 (0 to 39)"),
        (object(), "a object gives no indices"),
    ],
)
def test_what_a_sampler_cannot_do_is_told(sampler: Any, what: str) -> None:
    with pytest.raises(InputError) as caught:
        made(sampler)

    assert what in caught.value.what


def test_a_misspelt_attribute_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        made(Weighted("weigths"))

    assert caught.value.fix == "did you mean `weights`?"


# ---------------------------------------------------------------------------------------------------- samplers of torch

OF_TORCH: dict[str, Any] = {
    "sequential": lambda: SequentialSampler(Words()),
    "random": lambda: RandomSampler(Words()),
    "random with a generator": lambda: RandomSampler(
        Words(), generator=torch.Generator().manual_seed(1)
    ),
    "weighted": lambda: WeightedRandomSampler([1.0] * 40, 50),
    "part": lambda: SubsetRandomSampler(range(5, 20)),
    "distributed": lambda: DistributedSampler(Words(), num_replicas=2, rank=1, seed=3),
    "list": lambda: [4, 2, 2, 0],
}


@pytest.mark.parametrize("make", OF_TORCH.values(), ids=list(OF_TORCH))
def test_samplers_of_torch_become_functions_of_the_epoch(make: Any) -> None:
    torch.manual_seed(1)
    order = made(make())
    epochs = [whole(order, epoch) for epoch in range(3)]
    torch.manual_seed(2)

    assert [whole(made(make()), epoch) for epoch in (2, 1, 0)] == epochs[::-1]
    assert len(epochs[0]) == order.n
    assert made(make()).indices(1, 3, 4).tolist() == epochs[1][3:7]


def test_a_sampler_that_draws_from_a_generator_of_its_own_is_refused() -> None:
    class Private:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __iter__(self) -> Iterator[int]:
            return iter(self.rng.permutation(40).tolist())

    with pytest.raises(
        InputError, match=r"data\.train\.sampler: Private gives another order each time"
    ):
        made(Private())


def test_batches_of_a_batch_sampler_are_batches_and_several_make_a_step() -> None:
    class Growing:
        """Batches of 1, 2, 3, ... samples."""

        def __iter__(self) -> Iterator[list[int]]:
            indices = torch.randperm(15).tolist()
            for size in range(1, 6):
                yield [indices.pop() for _ in range(size)]

    def loader(**options: Any) -> Loader:
        return Loader(Words(), batch_sampler=Growing(), collate=list, seed=3, **options)

    windows = list(loader(accumulate=2).windows(1, 0))
    assert [window.sizes or [window.samples] for window in windows] == [[1, 2], [3, 4], [5]]
    assert loader(accumulate=2).steps_per_epoch == 3
    assert [window.batches for window in loader(accumulate=2).windows(1, 1)] == [
        window.batches for window in windows[1:]
    ]
    assert sorted(index for batch in loader() for index in batch) == list(range(15))
    assert list(loader()) == [
        batch for window in loader().windows(0, 0) for batch in window.batches
    ]


def test_a_batch_sampler_of_torch_shuffles_by_the_seed() -> None:
    def batches(seed: int, epoch: int = 0) -> list[Any]:
        sampler = BatchSampler(RandomSampler(Words(10)), 4, drop_last=False)
        loader = Loader(Words(10), batch_sampler=sampler, seed=seed, collate=list)
        return [window.batches[0] for window in loader.windows(epoch, 0)]

    assert batches(1) == batches(1)
    assert batches(1) != batches(2) and batches(1) != batches(1, 1)
    assert [len(batch) for batch in batches(1)] == [4, 4, 2]


@pytest.mark.row("B18")
def test_every_epoch_of_a_sharded_sampler_differs_and_the_shards_are_the_whole() -> None:
    def order(rank: int, replicas: int = 2) -> Order:
        return made(DistributedSampler(Words(), num_replicas=replicas, rank=rank, seed=3))

    first, second = order(0), order(1)
    for epoch in range(3):
        alone = whole(order(0, 1), epoch)
        assert whole(first, epoch) == alone[0::2] and whole(second, epoch) == alone[1::2]
        assert sorted(alone) == list(range(40))
    assert len({tuple(whole(first, epoch)) for epoch in range(5)}) == 5


# ---------------------------------------------------------------------------------------------------------------- keyed


@given(st.integers(0, (1 << 64) - 1))
def test_uniform_numbers_lie_below_one_and_differ(value: int) -> None:
    numbers = uniform(value, np.arange(200, dtype=np.uint64))

    assert (numbers >= 0).all() and (numbers < 1).all()
    assert len(set(numbers.tolist())) == 200


def test_uniform_numbers_are_uniform_and_neighbours_are_not_alike() -> None:
    for value in (0, 1, 12345, (1 << 64) - 1):
        numbers = uniform(value, np.arange(100_000, dtype=np.uint64))
        counts = np.bincount((numbers * 100).astype(int), minlength=100)
        assert abs(((counts - 1000) ** 2 / 1000).sum() - 99) < 5 * np.sqrt(2 * 99)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 4.5 / np.sqrt(100_000)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"batch_size": 4, "sampler": Balanced(), "shuffle": True}, "sampler and shuffle"),
        ({"batch_size": 4, "batch_sampler": [[0]]}, "batch_sampler and batch_size"),
        ({"sampler": Balanced(), "batch_sampler": [[0]]}, "sampler and batch_sampler"),
        ({"batch_sampler": [[0]], "drop_last": True}, "batch_sampler and drop_last"),
        ({}, "[data.train] has no batch_size"),
    ],
)
def test_what_says_the_same_twice_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as caught:
        Loader(Words(), **options)

    assert what in caught.value.what
