"""Loader: every sample once an epoch, with equal draws from any start and any batch size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset, default_collate

from assay.core.errors import InputError
from assay.engine.data.loader import Loader
from assay.engine.data.source import Window


class Numbers:
    """Its items are their own indices."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Noisy(Numbers):
    """Each item comes with a number from each global generator."""

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(())), float(np.random.rand()), random.random()


class Batched(Noisy):
    """The same, several at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that leaves everything as it is."""
    return samples


def samples_of(windows: Iterator[Window]) -> list[list[Any]]:
    """The samples of each window, whatever its micro-batches."""
    return [[sample for batch in window.batches for sample in batch] for window in windows]


def noise(*, batch_size: int = 4, epoch: int = 0, start: int = 0, **options: Any) -> list[Any]:
    """The samples of `Noisy` from window `start` on."""
    loader = Loader(Noisy(10), batch_size=batch_size, collate=as_list, **options)
    return [sample for window in samples_of(loader.windows(epoch, start)) for sample in window]


# ------------------------------------------------------------------------------------------------------ which samples


@given(
    n=st.integers(0, 60),
    micro=st.integers(1, 7),
    accumulate=st.integers(1, 4),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_an_epoch_holds_every_sample_once_but_for_those_of_a_short_last_batch(
    n: int, micro: int, accumulate: int, drop_last: bool, shuffle: bool, epoch: int
) -> None:
    batch_size = micro * accumulate
    loader = Loader(
        Numbers(n),
        batch_size=batch_size,
        accumulate=accumulate,
        drop_last=drop_last,
        shuffle=shuffle,
        collate=as_list,
    )

    windows = list(loader.windows(epoch, 0))
    seen = [sample for window in samples_of(iter(windows)) for sample in window]

    assert len(windows) == loader.steps_per_epoch == len(loader)
    assert all(window.samples == batch_size for window in windows[:-1])
    assert all(
        window.samples == sum(map(len, window.batches)) == sum(window.sizes or [window.samples])
        for window in windows
    )
    assert all(len(batch) <= micro for window in windows for batch in window.batches)
    assert len(set(seen)) == len(seen) == (n // batch_size * batch_size if drop_last else n)
    assert (seen == sorted(seen)) or shuffle
    assert set(seen) <= set(range(n))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.integers(0, 50))
def test_going_on_from_any_window_is_exact(
    n: int, micro: int, accumulate: int, drop_last: bool, start: int
) -> None:
    def loader() -> Loader:
        return Loader(
            Noisy(n),
            batch_size=micro * accumulate,
            accumulate=accumulate,
            drop_last=drop_last,
            shuffle=True,
            seed=7,
            collate=as_list,
        )

    assert samples_of(loader().windows(2, start)) == samples_of(loader().windows(2, 0))[start:]


def test_twenty_samples_in_batches_of_eight() -> None:
    assert [window.samples for window in Loader(Numbers(20), batch_size=8).windows(0, 0)] == [
        8,
        8,
        4,
    ]
    assert [
        window.samples for window in Loader(Numbers(20), batch_size=8, drop_last=True).windows(0, 0)
    ] == [8, 8]


def test_only_the_seed_decides_the_order() -> None:
    def order(seed: int) -> list[int]:
        loader = Loader(Numbers(50), batch_size=50, shuffle=True, seed=seed, collate=as_list)
        return samples_of(loader.windows(0, 0))[0]

    torch.manual_seed(1)
    first = order(1)
    torch.manual_seed(2)

    assert order(1) == first
    assert order(2) != first


def test_iterating_gives_whole_batches_of_the_first_epoch() -> None:
    loader = Loader(Numbers(10), batch_size=4, accumulate=2, shuffle=True, collate=as_list)

    assert list(loader) == samples_of(loader.windows(0, 0))
    assert len(list(loader)) == len(loader) == 3
    assert [len(batch) for batch in Loader(Numbers(10), batch_size=4, drop_last=True)] == [4, 4]


def test_no_data_is_an_epoch_of_no_step() -> None:
    loader = Loader(Numbers(0), batch_size=4, shuffle=True)

    assert loader.steps_per_epoch == 0
    assert list(loader.windows(0, 0)) == []


# --------------------------------------------------------------------------------------------------------- randomness


@pytest.mark.parametrize(
    "options", [{"batch_size": 3}, {"batch_size": 10}, {"batch_size": 4, "accumulate": 2}]
)
def test_what_a_sample_draws_does_not_depend_on_how_batches_are_cut(
    options: dict[str, int],
) -> None:
    assert noise(shuffle=True, **options) == noise(shuffle=True, batch_size=4)


def test_what_a_sample_draws_is_a_function_of_seed_split_epoch_and_place() -> None:
    same = noise(seed=5, epoch=1)

    random.seed(1)
    torch.manual_seed(1)
    np.random.seed(1)
    assert noise(seed=5, epoch=1) == same

    for others in (
        noise(seed=6, epoch=1),
        noise(seed=5, epoch=2),
        noise(seed=5, epoch=1, split="valid"),
    ):
        assert [sample[0] for sample in others] == [sample[0] for sample in same]
        for generator in (1, 2, 3):
            assert not {sample[generator] for sample in others} & {
                sample[generator] for sample in same
            }


def test_no_two_samples_draw_the_same() -> None:
    drawn = [sample for epoch in range(3) for sample in noise(epoch=epoch)]

    for generator in (1, 2, 3):
        assert len({sample[generator] for sample in drawn}) == 30


@pytest.mark.parametrize("dataset", [Noisy(10), Batched(10)], ids=["sample", "batch"])
def test_loading_leaves_the_generators_of_training_alone(dataset: Noisy) -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    expected = [draw(), draw()]

    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    found = [draw()]
    for _ in Loader(dataset, batch_size=4).windows(0, 0):
        pass
    found.append(draw())

    assert found == expected


def test_items_that_come_several_at_a_time_are_keyed_by_batch() -> None:
    loader = Loader(Batched(10), batch_size=4, collate=as_list)
    whole = samples_of(loader.windows(1, 0))

    assert loader.randomness == "batch"
    assert samples_of(loader.windows(1, 2)) == whole[2:]
    assert samples_of(loader.windows(0, 0)) != whole
    assert len({sample[1] for window in whole for sample in window}) == 10


def test_a_batch_that_comes_ready_made_is_not_collated_again() -> None:
    class Ready(Numbers):
        def __getitems__(self, indices: list[int]) -> torch.Tensor:
            return torch.tensor(indices) * 10

    (window,) = Loader(Ready(3), batch_size=3).windows(0, 0)

    assert torch.equal(window.batches[0], torch.tensor([0, 10, 20]))


def test_a_data_set_may_say_itself_how_it_draws() -> None:
    class Quiet(Numbers):
        randomness = "none"

    assert Loader(Numbers(4), batch_size=1).randomness == "sample"
    assert Loader(Batched(4), batch_size=1).randomness == "batch"
    assert Loader(TensorDataset(torch.zeros(4)), batch_size=1).randomness == "none"
    assert Loader(Quiet(4), batch_size=1).randomness == "none"
    assert Loader(Quiet(4), batch_size=1, randomness="batch").randomness == "batch"
    assert [batch.tolist() for batch in Loader(Quiet(4), batch_size=3)] == [[0, 1, 2], [3]]


# ------------------------------------------------------------------------------------------------------------ batches


def test_a_tensor_data_set_gives_what_fetching_item_by_item_would() -> None:
    dataset = TensorDataset(torch.randn(10, 3), torch.arange(10))

    for window in Loader(dataset, batch_size=4, shuffle=True, seed=2).windows(3, 0):
        inputs, targets = window.batches[0]
        expected = default_collate([dataset[int(index)] for index in targets])
        assert torch.equal(inputs, expected[0])
        assert torch.equal(targets, expected[1])


def test_a_tensor_data_set_with_items_of_its_own_is_asked_for_them() -> None:
    class Shifted(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return self.tensors[0][index] + 100 + torch.rand(())

    (batch,) = Loader(Shifted(torch.arange(3.0)), batch_size=3)

    assert (batch >= torch.tensor([100.0, 101.0, 102.0])).all()


def test_whoever_gives_a_collate_function_gets_it_called() -> None:
    class Own(Numbers):
        def collate_fn(self, samples: list[int]) -> str:
            return f"own {samples}"

    dataset = TensorDataset(torch.arange(2.0))

    assert list(Loader(Own(2), batch_size=2)) == ["own [0, 1]"]
    assert list(Loader(Own(2), batch_size=2, collate=sum)) == [1]
    assert list(Loader(dataset, batch_size=2, collate=len)) == [2]
    assert [batch.tolist() for batch in Loader(Numbers(2), batch_size=2)] == [[0, 1]]


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise OSError("no such image")
        return index


class BrokenBatched(Broken):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@pytest.mark.parametrize(
    ("dataset", "options", "samples"),
    [
        (Broken(8), {}, "the sample 5"),
        (Broken(8), {"randomness": "none"}, "the sample 5"),
        (BrokenBatched(8), {}, "the samples 4, 5, 6, 7"),
    ],
)
def test_an_error_of_the_data_set_stays_what_it_is_and_names_the_sample(
    dataset: Numbers, options: dict[str, Any], samples: str
) -> None:
    windows = Loader(dataset, batch_size=4, split="valid", **options).windows(0, 0)
    next(windows)

    with pytest.raises(OSError, match="no such image") as caught:
        next(windows)

    assert caught.value.__notes__ == [f"while loading {samples} of data.valid"]


# -------------------------------------------------------------------------------------------------------- what is given


@pytest.mark.parametrize(
    ("options", "arithmetic"),
    [
        ({"batch_size": 64}, "64 = 1 accumulate x 64"),
        ({"batch_size": 64, "accumulate": 4}, "64 = 4 accumulate x 16"),
        ({"batch_size": 64, "micro_batch_size": 16}, "64 = 4 accumulate x 16"),
        ({"batch_size": 64, "micro_batch_size": 16, "accumulate": 4}, "64 = 4 accumulate x 16"),
        ({"batch_size": 64, "micro_batch_size": 64, "accumulate": 1}, "64 = 1 accumulate x 64"),
        ({"batch_size": 1, "accumulate": 1}, "1 = 1 accumulate x 1"),
    ],
)
def test_a_batch_is_split_as_asked_and_the_arithmetic_can_be_read(
    options: dict[str, int], arithmetic: str
) -> None:
    assert Loader(Numbers(100), **options).arithmetic == arithmetic  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "what", "fix"),
    [
        ({"batch_size": 0}, "data.train.batch_size is 0", ""),
        (
            {"batch_size": 6, "accumulate": 4},
            "6 cannot be split into 4",
            "accumulate can be 1, 2, 3, 6.",
        ),
        ({"batch_size": 2, "accumulate": 4}, "2 cannot be split into 4", "accumulate can be 1, 2."),
        (
            {"batch_size": 6, "micro_batch_size": 4},
            "micro-batches of 4",
            "micro_batch_size can be 1, 2, 3, 6.",
        ),
        (
            {"batch_size": 6, "micro_batch_size": 12},
            "micro-batches of 12",
            "micro_batch_size can be 1, 2, 3, 6.",
        ),
        ({"batch_size": 6, "micro_batch_size": 0}, "micro_batch_size is 0", ""),
        ({"batch_size": 6, "accumulate": 0}, "accumulate is 0", ""),
        (
            {"batch_size": 8, "micro_batch_size": 2, "accumulate": 2},
            "is not accumulate 2 x",
            "Give one of the two",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_with_what_can(
    options: dict[str, int], what: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        Loader(Numbers(100), **options)  # type: ignore[arg-type]

    assert what in caught.value.what
    assert fix in caught.value.fix


def test_a_stream_is_no_data_set() -> None:
    with pytest.raises(
        InputError, match=r"data\.valid: generator has no length or no items by index"
    ):
        Loader((i for i in range(3)), batch_size=1, split="valid")  # type: ignore[arg-type]


@pytest.mark.row("E24")
@pytest.mark.parametrize("workers", [0, 2])
def test_training_goes_on_at_the_exact_item_of_a_thousand_and_a_test_counts_each_once(
    workers: int,
) -> None:
    def items(epoch: int, start: int) -> list[int]:
        with closing(
            Loader(Numbers(1000), batch_size=32, shuffle=True, seed=5, workers=workers)
        ) as loader:
            return [
                int(item)
                for window in loader.windows(epoch, start)
                for batch in window.batches
                for item in batch
            ]

    whole = items(1, 0)
    for step in (1, 13, 31):
        assert items(1, step) == whole[32 * step :]
    assert sorted(whole) == list(range(1000))
    with closing(Loader(Numbers(1000), batch_size=32, split="test", workers=workers)) as loader:
        tested = [int(item) for batch in loader for item in batch]
    assert tested == list(range(1000))


@given(
    n=st.integers(1, 60),
    micro=st.integers(1, 4),
    accumulate=st.integers(1, 3),
    ranks=st.integers(1, 5),
    start=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_the_windows_of_several_ranks_are_those_of_one_dealt_out(
    n: int, micro: int, accumulate: int, ranks: int, start: int, drop_last: bool
) -> None:
    options: Any = {"batch_size": micro * accumulate * ranks, "shuffle": True, "collate": as_list}
    options["drop_last"] = drop_last
    one = Loader(Numbers(n), micro_batch_size=micro, **options)
    shares = [
        Loader(Numbers(n), accumulate=accumulate, rank=i, ranks=ranks, **options)
        for i in range(ranks)
    ]

    whole = list(one.windows(1, start))
    dealt = list(zip(*(share.windows(1, start) for share in shares), strict=True))

    assert [share.steps_per_epoch for share in shares] == [one.steps_per_epoch] * ranks
    assert len(dealt) == len(whole)
    for window, own in zip(whole, dealt, strict=True):
        assert [list(share.batches) for share in own] == [
            list(window.batches)[i::ranks] for i in range(ranks)
        ]
        assert {share.samples for share in own} == {window.samples}
        assert {share.micro_steps for share in own} == {len(own[0].batches)}


@pytest.mark.row("E39")
def test_ranks_evaluate_batches_of_the_size_that_is_given_each() -> None:
    shares = [
        Loader(Numbers(100), micro_batch_size=2, split="test", collate=as_list, rank=i, ranks=8)
        for i in range(8)
    ]

    assert shares[0].sizes.whole == 16
    assert [len(share) for share in shares] == [7] * 8
    assert sorted(sample for share in shares for batch in share for sample in batch) == list(
        range(100)
    )


def test_worker_processes_load_the_share_of_their_rank() -> None:
    plain, loaded = (
        [
            [list(window.batches) for window in share.windows(0, 0)]
            for i in range(2)
            for share in [
                Loader(
                    Noisy(11),
                    batch_size=4,
                    collate=as_list,
                    shuffle=True,
                    rank=i,
                    ranks=2,
                    workers=workers,
                )
            ]
        ]
        for workers in (0, 1)
    )

    assert loaded == plain
    assert plain[1][-1] != []  # 3 samples: two for the first rank, one for the second


def test_a_batch_that_ranks_cannot_divide_is_refused_with_the_sizes_that_can() -> None:
    with pytest.raises(InputError, match="A batch of 32 cannot be split evenly on 3 ranks"):
        Loader(Numbers(100), batch_size=32, ranks=3)
    with pytest.raises(InputError, match="no rank 2 of 2"):
        Loader(Numbers(100), batch_size=32, rank=2, ranks=2)


def test_each_batch_of_a_batch_sampler_is_shared_by_the_ranks() -> None:
    lists = [[0, 1, 2, 3], [4, 5], [6]]

    shares = [
        Loader(Numbers(7), batch_sampler=lists, collate=as_list, rank=i, ranks=2) for i in range(2)
    ]

    found = [[list(window.batches) for window in share.windows(0, 0)] for share in shares]
    assert found == [[[[0, 1]], [[4]], [[6]]], [[[2, 3]], [[5]], []]]
