"""Differences between an exported model and that of the record."""

from __future__ import annotations

import math

import pytest
import torch

from assay.engine.export.parity import Deviation


def deviation(exported: list[float], recorded: list[float]) -> Deviation:
    found = Deviation()
    found.add(torch.tensor(exported), torch.tensor(recorded))
    return found


def test_a_difference_is_relative_to_the_value_and_near_zero_to_the_usual_one() -> None:
    assert deviation([101.0, 2, 3], [100.0, 2, 3]).relative == pytest.approx(0.01)
    assert deviation([0.3, 2, 3], [0.0, 2, 3]).relative == pytest.approx(0.15)


def test_small_probabilities_that_are_others_do_not_pass_for_equal() -> None:
    found = deviation([2e-5, 1e-5], [1e-5, 2e-5])

    assert found.absolute < 1e-4 < found.relative


def test_one_huge_value_does_not_hide_the_others() -> None:
    assert deviation([-1e9, 1.5, 1.0], [-1e9, 1.0, 1.0]).relative == pytest.approx(0.5)


def test_nan_and_infinity_are_equal_to_themselves_only() -> None:
    inf, nan = math.inf, math.nan

    assert deviation([inf, nan, 1], [inf, nan, 1]).relative == 0
    assert deviation([1, nan, 1], [inf, nan, 1]).relative == inf
    assert deviation([inf, 0, 1], [inf, nan, 1]).relative == inf


def test_an_output_of_another_shape_is_as_different_as_can_be() -> None:
    assert deviation([1, 2], [1, 2, 3]).relative == math.inf
