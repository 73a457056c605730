"""Draws of a sample: keyed for each global generator, and for those of the data set."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from assay.engine.data.batches import collate, digest_sample, size_of, to_device
from assay.engine.data.loader import Loader
from assay.engine.data.randomness import private_generators, randomness_of
from assay.engine.numerics.seed import SAMPLE, seed_all, stream_key


class Numbers:
    def __init__(self, n: int = 20) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return index


class Private(Numbers):
    """Draws from a generator of its own."""

    def __init__(self, n: int = 20) -> None:
        super().__init__(n)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return index, self.rng.random()


class Flip:
    """An augmentation with a generator of its own that takes a key."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def set_rng(self, key: int) -> None:
        self.rng.seed(key)

    def __call__(self, index: int) -> Any:
        return index, self.rng.random()


class Augmented(Numbers):
    def __init__(self, n: int = 20) -> None:
        super().__init__(n)
        self.steps = [Flip()]

    def __getitem__(self, index: int) -> Any:
        return self.steps[0](index)


def loaded(dataset: Any, **options: Any) -> list[Any]:
    """The batches of an epoch."""
    loader = Loader(dataset, batch_size=4, collate=list, **options)
    batches = [window.batches[0] for window in loader.windows(0, 0)]
    loader.close()
    return batches


@pytest.mark.parametrize("randomness", ["sample", "batch"])
def test_a_generator_of_the_data_set_is_keyed(randomness: str) -> None:
    whole = loaded(Private(), shuffle=True, randomness=randomness)
    by_workers = loaded(Private(), shuffle=True, randomness=randomness, workers=2)
    loader = Loader(Private(), batch_size=4, collate=list, shuffle=True, randomness=randomness)  # type: ignore[arg-type]
    late = [window.batches[0] for window in loader.windows(0, 3)]

    assert by_workers == whole and late == whole[3:]
    assert len({drawn for batch in whole for _, drawn in batch}) == 20


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("randomness", ["sample", "batch"])
def test_what_takes_a_key_is_given_it(workers: int, randomness: str) -> None:
    batches = loaded(Augmented(), workers=workers, randomness=randomness, shuffle=True)

    assert batches == loaded(Augmented(), randomness=randomness, shuffle=True)
    assert len({drawn for batch in batches for _, drawn in batch}) == 20


TENSORS = TensorDataset(torch.arange(20.0))
QUIET: dict[str, Any] = {
    "tensors": TENSORS,
    "a part of tensors": Subset(TENSORS, range(20)),
    "tensors joined": ConcatDataset([TENSORS, Subset(TENSORS, [1])]),
}


@pytest.mark.parametrize("name", QUIET)
def test_tensor_data_sets_of_torch_draw_nothing_and_are_not_keyed(name: str) -> None:
    assert randomness_of(QUIET[name]) == "none"
    seed_all(3)
    expected = torch.rand(2).tolist()

    seed_all(3)
    batches = iter(Loader(QUIET[name], batch_size=4, collate=lambda rows: torch.rand(1)))

    assert [float(next(batches)), float(next(batches))] == expected


def test_a_part_of_a_data_set_is_keyed_as_the_whole() -> None:
    whole = [sample for batch in loaded(Drawing("torch")) for sample in batch]
    part = [sample for batch in loaded(Subset(Drawing("torch"), range(20))) for sample in batch]

    assert part == whole


def test_a_generator_that_is_keyed_draws_the_same_however_batches_are_cut() -> None:
    whole = [sample for batch in loaded(Augmented()) for sample in batch]
    (one,) = Loader(Augmented(), batch_size=20, collate=list)

    assert one == whole


class Drawing(Numbers):
    """Draws from the named generators, but only for indices from `first` on."""

    def __init__(self, *names: str, first: int = 0, is_hidden: bool = False) -> None:
        super().__init__(20)
        self.names = names
        self.first = first
        self.is_hidden = is_hidden
        self.loaded: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(index)
        if index < self.first:
            return index
        with torch.random.fork_rng(devices=[], enabled=self.is_hidden):
            return index, [DRAWS[name]() for name in self.names]


DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())),
    "numpy": np.random.rand,
    "normal": np.random.randn,
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
}


@pytest.mark.parametrize("names", [("torch",), ("normal",), ("gauss",), ("random", "numpy")])
@pytest.mark.parametrize("first", [0, 13])
def test_draws_are_those_of_the_key_whenever_loading_begins_to_draw(
    names: tuple[str, ...], first: int
) -> None:
    data = Drawing(*names, first=first)
    seed_all(3)
    np.random.randn()  # half of a pair is kept
    random.gauss(0, 1)
    loader = Loader(data, batch_size=4, collate=list, seed=2)
    states = []
    found = []
    for window in loader.windows(1, 0):
        found += window.batches[0]
        states.append((np.random.randn(), random.gauss(0, 1), float(torch.rand(()))))

    for position, sample in enumerate(found):
        if position >= first:
            seed_all(stream_key(2, SAMPLE, crc32(b"train"), 1, position))
            assert sample == (position, [DRAWS[name]() for name in names])
    assert data.loaded == list(range(20))
    seed_all(3)
    np.random.randn()
    random.gauss(0, 1)
    outside = [(np.random.randn(), random.gauss(0, 1), float(torch.rand(()))) for _ in range(5)]
    assert states == outside  # nobody else is disturbed


def test_draws_of_which_no_trace_is_left_are_those_of_the_key() -> None:
    loader = Loader(Drawing("torch", is_hidden=True), batch_size=4, collate=list, seed=2)

    for window in loader.windows(0, 0):
        for index, drawn in window.batches[0]:
            seed_all(stream_key(2, SAMPLE, crc32(b"train"), 0, index))
            assert drawn == [float(torch.rand(()))]


def test_a_batch_that_draws_as_it_is_collated_has_the_draws_of_its_last_sample() -> None:
    loader = Loader(
        Numbers(), batch_size=4, collate=lambda batch: (batch, float(torch.rand(()))), seed=2
    )

    for window in loader.windows(0, 0):
        ((indices, drawn),) = window.batches
        seed_all(stream_key(2, SAMPLE, crc32(b"train"), 0, indices[-1]))
        assert drawn == float(torch.rand(()))


def test_an_error_of_a_sample_that_draws_late_is_that_of_its_key() -> None:
    class Failing(Drawing):
        def __getitem__(self, index: int) -> Any:
            if index > 5:
                raise ValueError(f"{super().__getitem__(index)}")
            return super().__getitem__(index)

    with pytest.raises(ValueError) as caught:
        list(Loader(Failing("random", first=5), batch_size=4, collate=list, seed=2))

    seed_all(stream_key(2, SAMPLE, crc32(b"train"), 0, 6))
    assert str(caught.value) == f"(6, [{random.random()}])"


def test_the_generators_of_a_data_set_are_listed_by_where_they_are() -> None:
    data = Augmented()
    data.extra = {"torch": torch.Generator(), "numpy": [np.random.RandomState(0)]}  # type: ignore[attr-defined]

    assert sorted(private_generators(data)) == [
        (".extra['numpy'][0]", "mtrand.RandomState"),
        (".extra['torch']", "torch.Generator"),
        (".steps[0].rng", "random.Random"),
    ]


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Sample:
    image: Any
    label: Any


NAN = float("nan")
ALIKE = [
    (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0])),
    (torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([1, 3])),
    (torch.zeros(2), torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (np.array([1.0, NAN]), np.array([1.0, NAN]), np.array([1.0, 0.0])),
    ({"a": [1, "x"]}, {"a": [1, "x"]}, {"a": [1, "y"]}),
    ({"a": 1}, {"a": 1}, {"b": 1}),
    ((1, NAN), (1, NAN), (1, 2.0)),
    (Sample(1, torch.ones(1)), Sample(1, torch.ones(1)), Sample(1, torch.zeros(1))),
    (1, 1, 1.0),
    (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse()),
]


@pytest.mark.parametrize(("one", "other", "another"), ALIKE)
def test_samples_are_compared_by_what_is_in_them(one: Any, other: Any, another: Any) -> None:
    assert digest_sample(one) == digest_sample(other) != digest_sample(another)


def test_what_cannot_be_compared_counts_as_equal() -> None:
    assert digest_sample(object()) == digest_sample(object())


# -------------------------------------------------------------------------------------------------------------- batches


SAMPLES = {
    "tuple": lambda i: (torch.full((2,), float(i)), i),
    "dict": lambda i: {"image": torch.full((2,), float(i)), "label": i},
    "named tuple": lambda i: Pair(torch.full((2,), float(i)), i),
    "dataclass": lambda i: Sample(image=torch.full((2,), float(i)), label=i),
    "namespace": lambda i: SimpleNamespace(image=torch.full((2,), float(i)), label=i),
    "dataclass in a dict": lambda i: {"sample": Sample(image=torch.full((2,), float(i)), label=i)},
    "namespace in a pair": lambda i: Pair(SimpleNamespace(image=torch.full((2,), float(i))), i),
}


@pytest.mark.row("E21", "B23")
@pytest.mark.parametrize("make", SAMPLES.values(), ids=list(SAMPLES))
@pytest.mark.parametrize("workers", [0, 2])
def test_tuples_dicts_and_instances_are_batched_as_what_they_are(make: Any, workers: int) -> None:
    class Data(Numbers):
        def __getitem__(self, index: int) -> Any:
            return make(index)

    loader = Loader(Data(6), batch_size=4, workers=workers)
    batch, last = list(loader)
    loader.close()

    kind = list if type(make(0)) is tuple else type(make(0))  # as torch has it
    assert type(batch) is kind
    assert (size_of(batch), size_of(last)) == (4, 2)
    moved = to_device(batch, torch.device("meta"))
    assert type(moved) is kind
    images = _first_tensor(batch)
    assert images.shape == (4, 2) and images[:, 0].tolist() == [0, 1, 2, 3]
    assert _first_tensor(moved).device.type == "meta"


def _first_tensor(batch: Any) -> torch.Tensor:
    while not isinstance(batch, torch.Tensor):
        if isinstance(batch, dict):
            batch = next(iter(batch.values()))
        elif isinstance(batch, tuple | list):
            batch = batch[0]
        else:
            batch = next(iter(vars(batch).values()))
    return batch


def test_samples_that_do_not_fit_each_other_are_told_with_their_numbers() -> None:
    class Ragged(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(index)

    with pytest.raises(RuntimeError) as caught:
        list(Loader(Ragged(4), batch_size=2))

    assert caught.value.__notes__ == ["while making a batch of the samples 0, 1 of data.train"]


def test_a_list_of_plain_samples_is_what_torch_makes_of_it() -> None:
    assert collate([1, 2]).tolist() == [1, 2]
    assert [part.tolist() for part in collate([(1, 2.0), (3, 4.0)])] == [[1, 3], [2.0, 4.0]]
