"""Curves as text."""

from __future__ import annotations

import math
import sys
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.core.errors import ArgumentError
from assay.query.drawing import COLORS, chart, choose_strokes, label_ticks, middles, sparkline
from assay.store.series import Series


def series(values: list[float], steps: list[int] | None = None) -> Series:
    n = len(values)
    zeros = np.zeros(n, dtype=np.int64)
    return Series(
        "m",
        np.array(steps if steps is not None else range(n), np.int64),
        zeros,
        np.array(values, float),
        zeros,
    )


LARGEST = sys.float_info.max


@given(st.lists(st.floats(), max_size=300), st.integers(30, 120), st.integers(3, 12))
@example([3.4e304, -LARGEST], 30, 3)
@example([LARGEST] * 31, 30, 3)
@example([-LARGEST, LARGEST, 5e-324] * 40, 30, 3)
def test_no_curve_is_wider_or_higher_than_it_may_be(
    values: list[float], width: int, height: int
) -> None:
    lines = chart(series(values), width=width, height=height)

    assert len(lines) <= height + 1
    assert all(len(line) <= width for line in lines)
    assert len(sparkline(values, width)) == min(len(values), width)
    assert len(sparkline(middles(series(values), width), width)) == min(len(values), width)


def test_a_curve_between_the_largest_floats_is_drawn_from_bottom_to_top() -> None:
    values = [-LARGEST, 0.0, LARGEST]

    assert sparkline(values, 3) == "▁▅█"
    assert sparkline(values * 20, 4) == sparkline([value / 8 for value in values * 20], 4)
    lines = chart(series(values), width=40, height=3)
    assert [line.split("│")[0].strip() for line in lines[:3]] == [
        "1.7977e+308",
        "0",
        "-1.7977e+308",
    ]
    assert middles(series(values * 700), 1) == [0.0]


def test_a_falling_curve_falls() -> None:
    lines = chart(series([4.0, 3.0, 2.0, 1.0]), width=40, height=4)

    assert lines[0].startswith("  4 │") and lines[0][5] != " "
    assert lines[3].startswith("  1 │") and lines[3].rstrip()[-1] != "│"
    assert lines[-1].endswith("3")


@given(
    st.lists(st.floats(allow_infinity=False), min_size=1, max_size=400),
    st.integers(1, 50),
    st.data(),
)
def test_a_reduced_curve_keeps_every_extreme(
    values: list[float], buckets: int, data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(0, 9), min_size=len(values), max_size=len(values)))
    first = data.draw(
        st.sampled_from([0, -(2**63), 2**53 + 3, 2**63 - 1 - sum(gaps)])
    )  # not all of them are floats
    steps = [first + each for each in accumulate(gaps, initial=0)][: len(values)]
    whole = series(values, steps)

    found = whole.reduce(buckets)

    assert len(found) <= max(buckets, 1) and found.counts.sum() == len(values)
    known = [value for value in values if not math.isnan(value)]
    if known:
        assert np.nanmin(found.lows) == min(known) and np.nanmax(found.highs) == max(known)
    assert found.steps[0] == steps[0] and list(found.steps) == sorted(found.steps)
    assert found.lasts[-1] == values[-1] or math.isnan(values[-1])


def test_nothing_is_reduced_to_nothing_and_no_range_is_refused() -> None:
    assert len(series([]).reduce(5)) == 0
    assert series([1.0, 9.0, 2.0]).reduce(5).lows.tolist() == [1.0, 9.0, 2.0]
    with pytest.raises(ArgumentError):
        series([1.0]).reduce(0)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0.99991, 0.99992, 0.99993), "0.99991 0.99992 0.99993"),
        ((1000.0, 1000.0002, 1000.0004), "1000 1000.0002 1000.0004"),
        ((1e9, 1e9 + 2e4, 1e9 + 4e4), "1e9 1.00002e9 1.00004e9"),
        ((0.0, 5e-21, 1e-20), "0 5e-21 1e-20"),
        ((0.0, 1e-300, 2e-300), "0 1e-300 2e-300"),
        ((0.0, 1e300, 2e300), "0 1e300 2e300"),
        ((-0.5, 0.0, 0.5), "-0.5 0 0.5"),
    ],
)
def test_labels_of_ticks_have_the_digits_that_their_distance_needs(
    values: tuple[float, ...], labels: str
) -> None:
    assert " ".join(label_ticks(values)) == labels


def test_a_name_has_one_colour_in_a_figure_and_on_the_page_whatever_the_order() -> None:
    # The same names and numbers as in frontend/src/state/state.test.ts.
    names = ["lr=0.01 width=64", "lr=0.1 width=64", "w\u00f6rter", "\u5b66\u4e60"]
    assert [choose_strokes([name])[name][0] for name in names] == [0, 2, 0, 3]
    many = [f"lr=0.{i}" for i in range(4 * len(COLORS))]
    strokes = choose_strokes(many)
    assert strokes == choose_strokes(many[::-1]) and len(set(strokes.values())) == len(many)
