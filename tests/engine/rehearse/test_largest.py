"""The search for the largest batch."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.engine.rehearse.ladder import largest, resize_batch


@given(
    fixed=st.integers(0, 10**6),
    slope=st.integers(1, 10**4),
    samples=st.integers(1, 64),
    usable=st.integers(1, 10**7),
)
def test_where_the_peak_grows_in_a_line_the_largest_batch_is_found(
    fixed: int, slope: int, samples: int, usable: int
) -> None:
    found = largest(lambda n: fixed + slope * n, samples, fixed + slope * samples, fixed, usable)

    best = min(max(0, (usable - fixed) // slope), 2**20)
    assert found.samples == best
    assert not best or found.peak_bytes == fixed + slope * best


@given(
    slope=st.integers(1, 10**4),
    more=st.integers(0, 10**4),
    knee=st.integers(1, 400),
    samples=st.integers(1, 64),
    usable=st.integers(1, 10**7),
)
def test_where_another_place_becomes_the_peak_what_is_told_fits(
    slope: int, more: int, knee: int, samples: int, usable: int
) -> None:
    def peak_of(count: int) -> int:
        return slope * count + more * max(0, count - knee)

    found = largest(peak_of, samples, peak_of(samples), 0, usable)

    assert peak_of(found.samples) <= usable
    assert found.samples or peak_of(1) > usable


def test_no_more_than_a_few_batches_are_tried() -> None:
    tried: list[int] = []

    def peak_of(count: int) -> int:
        tried.append(count)
        return 100 + 7 * count

    found = largest(peak_of, 4, 128, 100, 1000)

    assert (found.samples, found.peak_bytes) == (128, 996)
    assert len(tried) <= 2


def test_a_batch_of_another_size_has_the_shapes_and_the_labels_of_this_one() -> None:
    batch = {"x": torch.randn(3, 5), "y": torch.tensor([4, 5, 6]), "scale": torch.ones(2)}

    more = resize_batch(batch, 3, 7)

    assert more["x"].shape == (7, 5) and more["x"].is_meta
    assert more["y"].tolist() == [4, 5, 6, 4, 5, 6, 4]
    assert more["scale"] is batch["scale"]


def test_labels_of_a_huge_batch_take_no_memory() -> None:
    assert resize_batch(torch.zeros(2, 1000, dtype=torch.int64), 2, 2**20).is_meta
