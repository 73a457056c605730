"""Differences between an exported model and that of the record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from assay.formats.export_folder import OutputDifference


def difference(exported: Any, recorded: Any) -> OutputDifference:
    return OutputDifference.between(np, np.array(exported), np.array(recorded))


def test_a_difference_is_relative_to_the_value_and_near_zero_to_the_usual_one() -> None:
    assert difference([101.0, 2, 3], [100.0, 2, 3]).relative == pytest.approx(0.01)
    assert difference([0.3, 2, 3], [0.0, 2, 3]).relative == pytest.approx(0.15)


def test_small_probabilities_that_are_others_do_not_pass_for_equal() -> None:
    found = difference([2e-5, 1e-5], [1e-5, 2e-5])

    assert found.absolute < 1e-4 < found.relative


def test_one_huge_value_does_not_hide_the_others() -> None:
    assert difference([-1e9, 1.5, 1.0], [-1e9, 1.0, 1.0]).relative == pytest.approx(0.5)


def test_nan_and_infinity_are_equal_to_themselves_only() -> None:
    inf, nan = math.inf, math.nan

    assert difference([inf, nan, 1], [inf, nan, 1]).relative == 0
    assert difference([1, nan, 1], [inf, nan, 1]).relative == inf
    assert difference([inf, 0, 1], [inf, nan, 1]).relative == inf


def test_an_output_of_another_shape_is_as_different_as_can_be() -> None:
    assert difference([1, 2], [1, 2, 3]).relative == math.inf


def test_the_larger_one_of_each_batch_is_kept_and_a_batch_of_nothing_says_nothing() -> None:
    first, second = difference([1.0, 3.0], [1.0, 2.0]), difference(104.0, 100.0)

    assert first.or_larger(second) == OutputDifference(absolute=4.0, relative=first.relative)
    assert (
        difference([], []) == difference(5, 5) == difference([True], [True]) == OutputDifference()
    )
