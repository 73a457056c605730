"""Student's tests, intervals and corrections equal those of scipy and of published examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.query.significance import correct_by_holm, paired_t, t_quantile, two_sided, welch

# Student (1908): hours of sleep gained by ten patients with each of two drugs.
FIRST_DRUG = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND_DRUG = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
SAMPLES = st.lists(st.floats(-100, 100).map(lambda value: round(value, 3)), min_size=2, max_size=12)


def test_the_tests_of_students_sleep_data_are_those_that_were_published() -> None:
    pairs = paired_t(
        [after - before for before, after in zip(FIRST_DRUG, SECOND_DRUG, strict=True)]
    )
    apart = welch(FIRST_DRUG, SECOND_DRUG)

    assert pairs is not None and apart is not None
    assert (round(pairs.t, 4), pairs.freedom, round(pairs.p, 6)) == (4.0621, 9, 0.002833)
    assert [round(end, 4) for end in pairs.interval()] == [0.7001, 2.4599]
    assert (round(apart.t, 4), round(apart.freedom, 3), round(apart.p, 5)) == (
        1.8608, 17.776, 0.07939
    )  # fmt: skip
    assert [round(end, 4) for end in apart.interval()] == [-0.2055, 3.3655]


@given(SAMPLES, SAMPLES)
def test_the_tests_are_those_of_scipy(left: list[float], right: list[float]) -> None:
    ours = welch(left, right)
    if np.ptp(left) > 0.01 and np.ptp(right) > 0.01:  # scipy is exact only there
        theirs = stats.ttest_ind(right, left, equal_var=False)
        assert ours is not None and ours.p == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
        ends = theirs.confidence_interval(0.95)
        assert ours.interval() == pytest.approx((ends.low, ends.high), rel=1e-6, abs=1e-9)
    differences = [a - b for a, b in zip(left, right, strict=False)]
    if np.ptp(differences) > 0.01:
        theirs = stats.ttest_1samp(differences, 0.0)
        ours = paired_t(differences)
        assert ours is not None and ours.p == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
        ends = theirs.confidence_interval(0.95)
        assert ours.interval() == pytest.approx((ends.low, ends.high), rel=1e-6, abs=1e-9)


@given(st.floats(0.0001, 0.9), st.floats(1.0, 2000.0))
def test_the_quantile_of_t_is_that_of_scipy(p: float, freedom: float) -> None:
    found = t_quantile(p, freedom)

    assert found == pytest.approx(stats.t.isf(p / 2, freedom), rel=1e-6)
    assert two_sided(found, freedom) == pytest.approx(p, rel=1e-6)


def test_equal_repeats_leave_nothing_to_luck() -> None:
    same, other = paired_t([0.0, 0.0]), paired_t([0.5, 0.5])

    assert same is not None and other is not None
    assert (same.p, same.interval()) == (1.0, (0.0, 0.0))
    assert (other.p, other.interval()) == (0.0, (0.5, 0.5))
    assert paired_t([1.0]) is None
    for value in (0.7, 0.988555788035147, -94.30246602712285):
        found = welch([value] * 2, [value] * 3)
        assert found is not None and (found.p, found.interval()) == (1.0, (0.0, 0.0))


def test_a_test_of_values_whose_squares_are_no_floats_is_that_of_smaller_ones() -> None:
    small, large = welch([1.0, 2.0], [2.0, 5.0]), welch([1e200, 2e200], [2e200, 5e200])

    assert small is not None and large is not None
    assert (large.t, large.p) == pytest.approx((small.t, small.p))


def test_holms_correction_is_that_of_a_published_example() -> None:
    assert correct_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_by_holm([0.6, 0.7]) == [1.0, 1.0]
