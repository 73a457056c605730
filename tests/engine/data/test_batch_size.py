"""Samples of one optimizer step, and how ranks and micro-steps share them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.engine import Loader
from assay.engine.data.batch_size import BatchSize, batch_size
from engine.toys import points


@pytest.mark.row("E29")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"whole": 64}, "64 = 1 accumulate x 64"),
        ({"whole": 64, "ranks": 2}, "64 = 2 ranks x 1 accumulate x 32"),
        ({"whole": 64, "accumulate": 4}, "64 = 4 accumulate x 16"),
        ({"whole": 64, "micro": 8}, "64 = 8 accumulate x 8"),
        ({"whole": 64, "accumulate": 4, "ranks": 2}, "64 = 2 ranks x 4 accumulate x 8"),
        ({"whole": 64, "micro": 8, "ranks": 2}, "64 = 2 ranks x 4 accumulate x 8"),
        ({"whole": 64, "micro": 8, "accumulate": 4, "ranks": 2}, "64 = 2 ranks x 4 accumulate x 8"),
        ({"micro": 8, "accumulate": 4, "ranks": 2}, "64 = 2 ranks x 4 accumulate x 8"),
        ({"micro": 8}, "8 = 1 accumulate x 8"),
    ],
)
def test_what_is_not_given_follows(given: dict[str, int], expected: str) -> None:
    assert str(batch_size(**given)) == expected


@pytest.mark.row("E29")
@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({}, "[data.train] has no batch_size.", "Write batch_size = 64"),
        (
            {"whole": 12, "accumulate": 5},
            "cannot be split into 5 equal",
            "accumulate can be 1, 2, 3, 4, 6, 12.",
        ),
        (
            {"whole": 12, "micro": 5},
            "micro-batches of 5.",
            "micro_batch_size can be 1, 2, 3, 4, 6, 12.",
        ),
        (
            {"whole": 12, "ranks": 8},
            "cannot be split evenly on 8 ranks.",
            "batch_size can be 8 or 16.",
        ),
        ({"whole": 3, "ranks": 8}, "cannot be split evenly on 8 ranks.", "batch_size can be 8."),
        (
            {"whole": 24, "accumulate": 5, "ranks": 2},
            "micro-batches on 2 ranks.",
            "can be 1, 2, 3, 4, 6, 12.",
        ),
        (
            {"whole": 24, "micro": 5, "ranks": 2},
            "micro-batches of 5 on 2 ranks.",
            "can be 1, 2, 3, 4, 6, 12.",
        ),
        (
            {"whole": 24, "micro": 3, "accumulate": 2, "ranks": 2},
            "batch_size 24 is not 2 ranks x accumulate 2 x micro_batch_size 3.",
            "Or batch_size = 12.",
        ),
        ({"whole": 0}, "data.train.batch_size is 0", ""),
        ({"whole": 8, "accumulate": -1}, "accumulate is -1", ""),
        ({"micro": 0}, "data.train.micro_batch_size is 0", ""),
    ],
)
def test_what_does_not_come_out_even_is_told_with_what_would(
    given: dict[str, int], what: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        batch_size(**given)

    assert what in caught.value.what
    assert fix in caught.value.fix


@given(
    ranks=st.integers(1, 16),
    accumulate=st.integers(1, 16),
    micro=st.integers(1, 64),
    known=st.sets(st.integers(0, 2)),
)
def test_any_two_of_the_three_give_the_third(
    ranks: int, accumulate: int, micro: int, known: set[int]
) -> None:
    expected = BatchSize(micro=micro, accumulate=accumulate, ranks=ranks)
    values = [("whole", expected.whole), ("micro", micro), ("accumulate", accumulate)]
    kept = {name: value for i, (name, value) in enumerate(values) if i in known}

    if len(kept) > 1:
        assert batch_size(ranks=ranks, **kept) == expected


def test_a_loader_takes_micro_batches_alone() -> None:
    loader = Loader(points(20), micro_batch_size=4, accumulate=2)

    assert (loader.batch_size, loader.arithmetic) == (8, "8 = 2 accumulate x 4")
    assert [list(window.sizes or ()) for window in loader.windows(0, 0)] == [[4, 4], [4, 4], []]


@pytest.mark.parametrize("name", ["whole", "micro", "accumulate"])
def test_a_size_that_is_no_whole_number_is_refused_as_one(name: str) -> None:
    sizes: dict[str, Any] = {"whole": 8, name: 2.5}

    with pytest.raises(InputError, match=r" is 2\.5; it must be a whole number\."):
        batch_size(**sizes)
