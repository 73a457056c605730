"""Keyed randomness: a stream is a function of numbers, whatever happened before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.engine.numerics.seed import (
    EVALUATE,
    INIT,
    ORDER,
    SAMPLE,
    STEP,
    keys,
    restore_generators,
    seed_all,
    seed_torch,
    stream_key,
)

numbers = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=6)


def draw() -> tuple[float, float, float]:
    """One number from each global generator."""
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_a_key_that_was_once_used_stays_what_it_was() -> None:
    assert stream_key(0) == 1786884285633530058
    assert stream_key(0, STEP, 137, 1) == 3901901869330037939
    assert stream_key(-1, SAMPLE, 1 << 32, 3, 4) == 3323248922264558085


@given(numbers, numbers)
def test_different_numbers_have_different_keys(first: list[int], second: list[int]) -> None:
    assert (stream_key(*first) == stream_key(*second)) is (first == second)
    assert 0 <= stream_key(*first) < 1 << 64


@given(numbers, st.integers(0, 5))
def test_keys_that_follow_each_other_are_those_made_one_by_one(
    given: list[int], count: int
) -> None:
    *same, first = given
    first = min(first, (1 << 63) - 6)

    assert keys(*same, first, count=count) == [stream_key(*same, first + i) for i in range(count)]


def test_no_two_purposes_share_a_stream() -> None:
    assert len({stream_key(0, purpose) for purpose in (INIT, ORDER, SAMPLE, STEP, EVALUATE)}) == 5


@pytest.mark.parametrize("value", [0, 1, (1 << 64) - 1])
def test_all_generators_follow_the_seed(value: int) -> None:
    seed_all(value)
    first = [draw(), draw()]
    seed_all(value)

    assert [draw(), draw()] == first
    seed_all(value ^ 2)
    assert not set(draw()) & set(first[0])


def test_torch_can_be_keyed_alone_and_as_its_own_function_would() -> None:
    seed_all(5)
    _, *others = draw()
    seed_all(5)
    seed_torch(9)
    keyed, *rest = draw()
    torch.manual_seed(9)

    assert keyed == float(torch.rand(()))
    assert rest == others


def test_what_happens_undisturbed_disturbs_nobody() -> None:
    seed_all(5)
    expected = [draw(), draw(), draw()]
    torch.manual_seed(5)
    expected_normals = torch.randn(3).tolist()

    seed_all(5)
    found = [draw()]
    with restore_generators():
        seed_all(1)
        draw()
        np.random.randn()  # leaves half of a pair behind
        random.gauss(0, 1)
        with restore_generators():
            seed_all(2)
    found.append(draw())
    with pytest.raises(ZeroDivisionError), restore_generators():
        seed_all(3)
        raise ZeroDivisionError
    found.append(draw())

    assert found == expected
    torch.manual_seed(5)
    assert torch.randn(3).tolist() == expected_normals


def test_what_happens_undisturbed_goes_on_from_where_things_are() -> None:
    seed_all(5)
    expected = draw()

    seed_all(5)
    with restore_generators():
        assert draw() == expected
    assert draw() == expected


@given(
    st.lists(
        st.sampled_from(
            ["normal", "gauss", "uniform", "inside", "inside normal", "nested", "seed"]
        ),
        max_size=30,
    ),
)
def test_whatever_is_drawn_inside_and_outside_the_outside_goes_on_as_if_there_were_no_inside(
    what: list[str],
) -> None:
    def outside(words: list[str]) -> list[float]:
        seed_all(4)
        found = []
        for word in words:
            if word == "normal":
                found.append(
                    float(np.random.randn())
                )  # the second of two is kept beside the generator
            elif word == "gauss":
                found.append(random.gauss())  # here too
            elif word == "uniform":
                found += draw()
            elif word == "seed":
                np.random.seed(9)
        return found

    def with_inside(words: list[str]) -> list[float]:
        seed_all(4)
        found = []
        for word in words:
            if word == "normal":
                found.append(float(np.random.randn()))
            elif word == "gauss":
                found.append(random.gauss())  # here too
            elif word == "uniform":
                found += draw()
            elif word == "seed":
                np.random.seed(9)
            else:
                with restore_generators():
                    seed_all(1)
                    first = float(np.random.randn()), random.gauss(), *draw()
                    if word == "nested":
                        with restore_generators():
                            seed_all(2)
                            draw()
                            np.random.randn()
                    seed_all(1)
                    assert (float(np.random.randn()), random.gauss(), *draw()) == first
                    if word == "inside normal":
                        np.random.randn()
                        random.gauss()
        return found

    assert with_inside(what) == outside(what)
