"""The order of samples: every index once an epoch, the same from wherever one starts to look."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.engine.data import plan as plan_module
from assay.engine.data.plan import Plan

sizes = st.integers(0, 3000)
seeds = st.integers(-(1 << 63), (1 << 63) - 1)
epochs = st.integers(0, 1 << 40)


def order(n: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    return Plan(n, seed=seed, shuffle=True).indices(epoch, 0, n).tolist()


@given(sizes, seeds, epochs)
def test_an_epoch_holds_every_index_exactly_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(order(n, seed=seed, epoch=epoch)) == list(range(n))


@given(sizes, seeds, epochs, st.integers(0, 3100), st.integers(0, 3100))
def test_starting_anywhere_gives_what_running_there_would_have_given(
    n: int, seed: int, epoch: int, start: int, count: int
) -> None:
    part = Plan(n, seed=seed, shuffle=True).indices(epoch, start, count)

    assert part.tolist() == order(n, seed=seed, epoch=epoch)[start : start + count]


@given(sizes, st.integers(1, 70), st.integers(0, 50), st.booleans())
def test_blocks_are_the_batches_from_a_position_on_with_their_positions(
    n: int, size: int, number: int, shuffle: bool
) -> None:
    plan = Plan(n, seed=3, shuffle=shuffle)
    start = number * size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "_BLOCK", 64)  # so that an epoch is many of them
        blocks = list(plan.blocks(2, start, size))

    assert [position for position, _ in blocks] == list(range(start, n, size))
    assert [len(indices) for _, indices in blocks[:-1]] == [size] * (len(blocks) - 1)
    assert [index for _, indices in blocks for index in indices] == plan.indices(
        2, start, n
    ).tolist()


def test_without_shuffling_the_order_is_that_of_the_data() -> None:
    plan = Plan(10, seed=5, shuffle=False)

    assert plan.indices(0, 0, 10).tolist() == plan.indices(7, 0, 10).tolist() == list(range(10))
    assert plan.indices(0, 8, 10).tolist() == [8, 9]


@given(st.integers(50, 3000), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_every_epoch_and_every_seed_has_an_order_of_its_own(
    n: int, first: int, second: int
) -> None:
    same = first == second

    assert (order(n, epoch=first) == order(n, epoch=second)) is same
    assert (order(n, seed=first) == order(n, seed=second)) is same
    assert (order(n, seed=first, epoch=second) == order(n, seed=second, epoch=first)) is same


def test_an_order_that_was_once_recorded_stays_what_it_was() -> None:
    assert order(10) == [9, 4, 2, 7, 3, 0, 8, 1, 6, 5]
    assert order(10, seed=1234, epoch=5) == [7, 1, 2, 5, 9, 8, 3, 4, 6, 0]
    last = Plan(60_000, seed=0, shuffle=True).indices(3, 59_995, 5).tolist()
    assert last == [58456, 55312, 7246, 41293, 3095]


def test_every_index_stands_at_every_position_about_equally_often() -> None:
    n, num_epochs = 9, 3000
    counts = np.zeros((n, n))
    for epoch in range(num_epochs):
        counts[np.arange(n), order(n, epoch=epoch)] += 1

    expected = num_epochs / n
    chi_squared = ((counts - expected) ** 2 / expected).sum()

    assert chi_squared < 2 * (n - 1) ** 2  # 64 on average, 128 is 5.7 deviations away


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_of_few_samples_every_order_comes_about_equally_often(n: int) -> None:
    counts = Counter(tuple(order(n, epoch=epoch)) for epoch in range(20 * math.factorial(n)))

    assert len(counts) == math.factorial(n)  # one that never comes is one in e to the 20th
    chi_squared = sum((count - 20) ** 2 / 20 for count in counts.values())
    degrees = math.factorial(n) - 1
    assert abs(chi_squared - degrees) < 6 * math.sqrt(2 * degrees)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [7, 12, 16, 17, 25])
def test_which_pair_stands_first_is_about_equally_often_each(n: int) -> None:
    num_pairs = n * (n - 1)
    pairs = [
        tuple(Plan(n, seed=1, shuffle=True).indices(epoch, 0, 2).tolist())
        for epoch in range(20 * num_pairs)
    ]

    chi_squared = sum((count - 20) ** 2 / 20 for count in Counter(pairs).values())
    chi_squared += 20 * (num_pairs - len(set(pairs)))
    assert abs(chi_squared - num_pairs) < 6 * math.sqrt(2 * num_pairs)


def test_orders_of_neighbouring_epochs_have_nothing_to_do_with_each_other() -> None:
    n = 500
    agreeing = [
        np.equal(order(n, epoch=epoch), order(n, epoch=epoch + 1)).sum() for epoch in range(200)
    ]
    neighbours = [np.equal(np.diff(order(n, epoch=epoch)), 1).sum() for epoch in range(200)]

    assert 0.7 < np.mean(agreeing) < 1.3  # two orders by chance agree at one position
    assert 0.7 < np.mean(neighbours) < 1.3  # and one index follows its predecessor


def test_the_end_of_a_very_long_epoch_is_as_near_as_its_beginning() -> None:
    plan = Plan(10**12, seed=0, shuffle=True)

    last = plan.indices(1, 10**12 - 3, 10).tolist()

    assert len(set(last)) == 3
    assert all(0 <= index < 10**12 for index in last)
    assert max(plan.indices(1, 0, 1000).tolist()) > 10**11


def test_a_negative_number_of_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="n is -1"):
        Plan(-1, seed=0, shuffle=True)


def test_every_small_number_of_samples_is_gone_through_once_whatever_the_seed_and_the_epoch() -> (
    None
):
    for n in range(130):
        expected = list(range(n))
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (7, 5), (2**62, 10**9)):
            assert sorted(order(n, seed=seed, epoch=epoch)) == expected


def test_three_samples_come_in_every_order_equally_often() -> None:
    orders = [tuple(order(3, epoch=epoch)) for epoch in range(6000)]

    counts = [orders.count(one) for one in set(orders)]

    assert len(counts) == 6
    assert (
        sum((count - 1000) ** 2 / 1000 for count in counts) < 30
    )  # 5 on average, 3 deviations are 15


@pytest.mark.parametrize("n", [1000, 65_537, 200_000])
def test_an_index_tells_nothing_about_those_that_follow(n: int) -> None:
    shuffled = [np.array(order(n, epoch=epoch), dtype=float) for epoch in range(4)]
    by_torch = [
        torch.randperm(n, generator=torch.Generator().manual_seed(i)).numpy().astype(float)
        for i in range(4)
    ]

    def correlations(orders: list[Any]) -> list[float]:
        """In deviations, of indices at a distance."""
        centred = [each - each.mean() for each in orders]
        return [
            float((each[:-lag] * each[lag:]).mean() / (each**2).mean() * np.sqrt(n))
            for each in centred
            for lag in (1, 2, 3, 7, 64, 256)
        ]

    for orders in (shuffled, by_torch):  # what is asked of ours holds for what everybody uses
        found = correlations(orders)
        assert max(map(abs, found)) < 4.5
        assert 0.5 < np.mean(np.square(found)) < 2


def test_every_stretch_of_a_long_epoch_is_a_fair_sample_of_the_data() -> None:
    n, parts = 200_000, 50
    indices = np.array(order(n))

    counts = np.stack(
        [np.bincount(stretch * parts // n, minlength=parts) for stretch in np.split(indices, parts)]
    )

    expected = n / parts / parts
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    freedom = (parts - 1) ** 2
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)
