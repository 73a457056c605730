"""Tests of means by Student's t, for lists, tables, the page and `assay compare`; no scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from assay.store.summaries import mean

LEVEL = 0.95
"""Confidence of every interval that is shown."""

_LEAST_P = 0.001
_STEPS = 300
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class TTest:
    """Result of a t-test: `p` is two-sided, `difference` the second mean less the first.

    `error` is the standard error of the difference.
    """

    difference: float
    error: float
    t: float
    freedom: float
    p: float

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the difference."""
        half = t_quantile(1.0 - level, self.freedom) * self.error if self.error else 0.0
        return self.difference - half, self.difference + half


def welch(left: Sequence[float], right: Sequence[float]) -> TTest | None:
    """Compare two samples by Welch's t-test, without assuming equal variances.

    None for fewer than two finite values in either.

    >>> left = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9]
    >>> found = welch(left, [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0])
    >>> round(found.t, 3), round(found.freedom, 2), round(found.p, 4)
    (1.407, 7.05, 0.202)
    """
    a, b = ([value for value in values if math.isfinite(value)] for values in (left, right))
    if len(a) < 2 or len(b) < 2:
        return None
    error_a = sample_deviation(a) / math.sqrt(len(a))
    error_b = sample_deviation(b) / math.sqrt(len(b))
    error = math.hypot(error_a, error_b)
    freedom = math.inf
    if error:
        parts = (error_a / error) ** 4 / (len(a) - 1), (error_b / error) ** 4 / (len(b) - 1)
        freedom = 1.0 / sum(parts)
    return _t_test(mean(b) - mean(a), error, freedom)


def paired_t(differences: Sequence[float]) -> TTest | None:
    """Compare two samples by the paired t-test, given the second less the first of each pair.

    None for fewer than two pairs.

    >>> found = paired_t([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    >>> round(found.difference, 2), round(found.t, 4), round(found.p, 4)
    (0.75, 1.3257, 0.2176)
    """
    if len(differences) < 2:
        return None
    count = len(differences)
    error = sample_deviation(differences) / math.sqrt(count)
    return _t_test(mean(differences), error, count - 1.0)


def _t_test(difference: float, error: float, freedom: float) -> TTest:
    if error:
        t = difference / error
        return TTest(difference, error, t, freedom, two_sided(t, freedom))
    # Every repeat came to the same bits: nothing is left to luck.
    if not difference:
        return TTest(difference, 0.0, 0.0, math.inf, 1.0)
    return TTest(difference, 0.0, math.copysign(math.inf, difference), math.inf, 0.0)


def describe_p(p: float) -> str:
    """Return a p with two digits, the smallest ones as below a limit.

    >>> describe_p(0.0412), describe_p(0.0001)
    ('p = 0.041', 'p < 0.001')
    """
    return f"p = {p:.2g}" if p >= _LEAST_P else f"p < {_LEAST_P:g}"


def correct_by_holm(ps: Sequence[float]) -> list[float]:
    """Return p of several tests, each corrected for their number by Holm's method.

    >>> correct_by_holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found = [0.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        largest = max(largest, min(1.0, ps[place] * (len(ps) - rank)))
        found[place] = largest
    return found


def confidence_interval(
    values: Sequence[float], level: float = LEVEL
) -> tuple[float, float] | None:
    """Return Student's confidence interval of a mean; None for fewer than two finite values.

    >>> low, high = confidence_interval([0.981, 0.985, 0.983])
    >>> round(low, 5), round(high, 5)
    (0.97803, 0.98797)
    """
    found = paired_t([value for value in values if math.isfinite(value)])
    return found.interval(level) if found is not None else None


def t_quantile(p: float, freedom: float) -> float:
    """Return the t at which `two_sided` is `p`, by bisection."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > p:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if two_sided(middle, freedom) > p else (low, middle)
    return high


def two_sided(t: float, freedom: float) -> float:
    """Return how likely Student's t is at least this far from 0.

    >>> round(two_sided(2.0, 10.0), 6), two_sided(0.0, 3.0)
    (0.073388, 1.0)
    """
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz).

    >>> round(incomplete_beta(0.5, 2.0, 3.0), 6)
    0.6875
    """
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # there the fraction converges slowly
        return 1.0 - incomplete_beta(1.0 - x, b, a)
    gammas = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(gammas + a * math.log(x) + b * math.log1p(-x))
    value, c, d = 1.0, 1.0, 0.0
    for step in range(_STEPS):
        half = step // 2
        if step == 0:
            numerator = 1.0
        elif step % 2 == 0:
            numerator = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        else:
            numerator = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        d = 1.0 / (1.0 + numerator * d or _TINY)
        c = 1.0 + numerator / c or _TINY
        value *= c * d
        if abs(1.0 - c * d) < 1e-12:
            break
    return front * (value - 1.0) / a


def sample_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1) of two finite values or more.

    >>> sample_deviation([0.7, 0.7, 0.7]), sample_deviation([1e200, 3e200]) / 1e200
    (0.0, 1.4142135623730951)
    """
    middle = mean(values)
    return math.hypot(*(value - middle for value in values)) / math.sqrt(len(values) - 1)
