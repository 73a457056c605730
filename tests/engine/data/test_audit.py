"""Findings of a split's audit: missing, duplicate and process-dependent samples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from assay.engine import Loader, Subset
from assay.engine.data.audit import Audit, audit, bench
from assay.engine.data.batches import digest_sample, leaves


class Points:
    def __init__(self, n: int = 20) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(index)) + torch.rand(2), index % 3


class Ready(Points):
    def __getitems__(self, indices: list[int]) -> Any:
        return torch.tensor(indices).float()


class ByProcess(Points):
    """Not the same in another process."""

    def __getitem__(self, index: int) -> Any:
        return os.getpid()


class Wild(Points):
    def __getitem__(self, index: int) -> Any:
        return index, np.random.default_rng().random()


class Private(Points):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return index, self.rng.random()


class Holes(Points):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([1.0, float("nan") if index in (6, 7) else 0.0])


def found(dataset: Any, **options: Any) -> Audit:
    given = {"batch_size": 4, "shuffle": True} | options
    if "sampler" in given:
        del given["shuffle"]
    loader = Loader(dataset, **given)
    loader.warn = lambda message: None
    return audit(loader, split="train")


def fact(audit: Audit, name: str) -> str:
    return "; ".join(text for each, text in audit.facts if each == name)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_data_that_is_as_it_should_be_is_said_to_be(workers: int, accumulate: int) -> None:
    result = found(Points(), workers=workers, accumulate=accumulate)

    assert result.problems == ()
    assert (result.samples, result.batches) == (20, 5 * accumulate)
    assert fact(result, "samples") == "each of 20 once"
    assert fact(result, "workers") == f"{workers} and {0 if workers else 2} load the same"
    assert fact(result, "resume") == "from batch 2 on it is the same"
    assert fact(result, "processes") == "2 are given each sample once"
    assert fact(result, "exactness") == "exact (plan)"
    assert fact(result, "batch") == "[0] float32 Bx2, [1] int64 B"
    assert fact(result, "labels") == "[1] 0 to 2, 3 different"
    assert fact(result, "generators") == "none of its own"
    assert result.batches_per_s > 0


def test_what_is_left_out_and_what_comes_twice_is_counted() -> None:
    assert fact(found(Points(22), drop_last=True), "samples").endswith("2 by drop_last")
    assert (
        fact(found(Points(), sampler=Subset([1, 2, 3, 4])), "samples")
        == "4 of 20 once, 16 never (0, 5, 6, 7, 8, ...)"
    )
    twice = fact(found(Points(), sampler=[1, 2, 2, 1, *range(3, 20)]), "samples")
    assert twice == "17 of 20 once, 2 more than once (1, 2), 1 never (0)"


def test_a_sample_that_does_not_exist_is_found() -> None:
    class Wraps(Points):
        def __getitem__(self, index: int) -> int:
            return index

    assert found(Wraps(), sampler=[0, 25]).problems == ("data.train asks for the sample 25, of 20",)


def test_a_batch_that_two_processes_cannot_share_is_told_and_is_no_problem() -> None:
    result = found(Points(), batch_size=5)

    assert (fact(result, "processes"), result.problems) == ("2 cannot share a batch of 5", ())


def test_samples_that_two_processes_would_leave_out_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a loader of one's own, which forgets the last batch of a rank."""
    own = Loader.own_tasks
    monkeypatch.setattr(
        Loader, "own_tasks", lambda loader, epoch: list(own(loader, epoch))[: 5 - loader.rank]
    )

    (problem,) = found(Points(), shuffle=False).problems

    assert problem == "2 processes do not load each sample of data.train once: first at position 18"


def test_data_that_differs_between_processes_is_found_with_the_first_difference() -> None:
    result = found(ByProcess(), shuffle=False)

    assert result.problems == (
        "data.train is not the same with 0 and 2 workers: the first difference is the sample 0, at position 0",
        "data.train is not the same from its middle on: the first difference is the sample 8, at position 8",
    )
    assert fact(result, "exactness") == "not exact" and fact(result, "workers") == ""


@pytest.mark.filterwarnings("ignore:data.train. a sample is another one")
def test_a_private_generator_is_found_by_where_it_is_and_one_that_no_key_reaches_by_its_draws() -> (
    None
):
    result, wild = found(Private()), found(Wild())

    assert result.problems == () and len(wild.problems) == 2
    assert fact(result, "generators") == "Private.rng, a _generator.Generator"


def test_values_that_are_not_finite_are_found() -> None:
    (problem,) = found(Holes(), shuffle=False).problems

    assert problem == (
        "data.train holds values that are not finite in 1 of its batches, first among the samples 4, 5, 6, 7"
    )


def test_batches_that_come_ready_made_are_compared_whole() -> None:
    result = found(Ready())

    assert result.problems == ()
    assert fact(result, "samples") == "5 batches that come ready made"
    assert fact(result, "batch") == "float32 B"


def test_tensors_in_memory_are_looked_at_too() -> None:
    result = found(TensorDataset(torch.zeros(10, 3), torch.arange(10)))

    assert result.problems == () and fact(result, "samples") == "each of 10 once"


def test_shapes_that_differ_are_listed() -> None:
    class Ragged(Points):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1 + index // 4)

    assert fact(found(Ragged(8), shuffle=False), "batch") == "float32 Bx1; float32 Bx2"


def test_a_data_loader_of_torch_is_looked_at_as_one_of_ours() -> None:
    exact: Any = DataLoader(Points(), batch_size=4, shuffle=True)  # type: ignore[arg-type]

    result = audit(exact, split="train")

    assert result.problems == ()
    assert (
        fact(result, "exactness") == "exact (plan)" and fact(result, "samples") == "each of 20 once"
    )


class OfOthers:
    """A class that makes batches itself."""

    def __iter__(self) -> Iterator[Any]:
        yield from DataLoader(Points(), batch_size=4, shuffle=True)  # type: ignore[arg-type]


def test_batches_of_others_are_gone_through_twice_and_compared() -> None:
    result = audit(OfOthers(), split="train")

    assert result.problems == ()
    assert fact(result, "exactness") == "not tried (replayed)"
    assert fact(result, "resume") == "from batch 2 on it is the same"
    assert (result.samples, result.batches) == (20, 5)


def test_batches_of_others_that_are_never_the_same_are_found() -> None:
    class Wild:
        def __iter__(self) -> Iterator[Any]:
            rng = np.random.default_rng()
            for _ in range(4):
                yield torch.tensor(rng.random(3))

    result = audit(Wild(), split="valid")
    (problem,) = result.problems
    assert problem.startswith(
        "data.valid is not the same when it is gone through again: the first difference is the"
    )


class Pair(NamedTuple):
    image: Any
    label: Any


def test_parts_are_named_by_the_way_to_them() -> None:
    sample = {"a": [torch.zeros(1), "x"], "b": Pair(1, {"c": 2})}

    assert [name for name, _ in leaves(sample)] == ["a[0]", "a[1]", "b.image", "b.label.c"]


def test_a_digest_tells_values_shapes_and_types_apart() -> None:
    samples = [
        torch.zeros(2),
        torch.zeros(2, 1),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.ones(2),
        np.zeros(2, dtype=np.int32),
        {"a": 1},
        {"b": 1},
        (1, 2),
        "x",
        None,
    ]

    assert len({digest_sample(sample) for sample in samples}) == len(samples)
    assert digest_sample({"a": torch.ones(2, dtype=torch.bool)}) == digest_sample(
        {"a": torch.ones(2, dtype=torch.bool)}
    )


@pytest.mark.row("B07")
def test_the_speed_of_loading_is_measured_for_each_number_of_workers() -> None:
    loader = Loader(Points(200), batch_size=4)

    results = bench(loader, seconds=0.1, workers=(0, 2))

    assert [result.workers for result in results if not result.pinned] == [0, 2]
    assert all(
        result.batches_per_s > 0 and result.batch_bytes == 4 * (2 * 4 + 8) for result in results
    )
    assert {result.pinned for result in results} == (
        {False, True} if torch.cuda.is_available() else {None}
    )
    (other,) = bench([torch.zeros(3)] * 9, seconds=0.1)
    assert (other.workers, other.batch_bytes) == (None, 12)
