"""Ramps and cycles of a loss weight, a temperature, a dropout rate: pure functions of the step.

weight = Ramp(0.0, 10.0, over=1000, shape="sigmoid")
loss = supervised + weight(state.step) * consistency
"""

from __future__ import annotations

import math
from typing import Literal

from assay.core.errors import InputError, did_you_mean

Shape = Literal["linear", "cosine", "sigmoid"]


def linear_up(step: float, over: float) -> float:
    """From 0 to 1 in a line over `over` steps, then 1.

    >>> linear_up(50, 100)
    0.5
    """
    return _share(step, over)


def linear_down(step: float, over: float) -> float:
    """From 1 to 0 in a line over `over` steps, then 0."""
    return 1.0 - _share(step, over)


def cosine_up(step: float, over: float) -> float:
    """From 0 to 1 along half a cosine, flat at both ends, then 1."""
    return 0.5 * (1.0 - math.cos(math.pi * _share(step, over)))


def cosine_down(step: float, over: float) -> float:
    """Fall from 1 to 0 along half a cosine, flat at both ends, then stay 0.

    Loshchilov & Hutter, arXiv 1608.03983.
    """
    return 0.5 * (1.0 + math.cos(math.pi * _share(step, over)))


def sigmoid_up(step: float, over: float) -> float:
    """Rise from 0.0067 to 1 as exp(-5 (1 - share)^2), steepest before the end, then stay 1.

    Laine & Aila, arXiv 1610.02242.
    """
    return math.exp(-5.0 * (1.0 - _share(step, over)) ** 2)


def sigmoid_down(step: float, over: float) -> float:
    """`sigmoid_up` in reverse: from 1 to 0.0067 over `over` steps, then 0.0067."""
    return math.exp(-5.0 * _share(step, over) ** 2)


def _share(step: float, over: float) -> float:
    """Return the part of the ramp that is done; a ramp over no steps is done at once."""
    return min(1.0, max(0.0, step / over)) if over > 0 else 1.0


_UP = {"linear": linear_up, "cosine": cosine_up, "sigmoid": sigmoid_up}


class Ramp:
    """Value that rises from `low` to `high` over `over` steps, after `after` steps at `low`.

    `high` may be below `low`. The sigmoid begins a little above `low`: it is 0.0067 of the way
    there.

    >>> Ramp(1.0, 3.0, over=10)(5)
    2.0
    """

    def __init__(
        self, low: float, high: float, *, over: int, after: int = 0, shape: Shape = "linear"
    ) -> None:
        _check(shape, over=over, after=after)
        self.low = low
        self.high = high
        self.over = over
        self.after = after
        self.shape = shape

    def __call__(self, step: int) -> float:
        if step < self.after:
            return self.low
        return self.low + (self.high - self.low) * _UP[self.shape](step - self.after, self.over)


class Cycle:
    """Value that cycles from `low` to `high` and back every `period` steps; `saw` jumps back.

    >>> [Cycle(0.0, 1.0, period=4)(step) for step in range(6)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.5]
    """

    def __init__(
        self, low: float, high: float, *, period: int, shape: Shape = "linear", saw: bool = False
    ) -> None:
        _check(shape, period=period)
        self.low = low
        self.high = high
        self.period = period
        self.shape = shape
        self.saw = saw

    def __call__(self, step: int) -> float:
        place = step % self.period
        half = self.period / 2
        up = (
            _UP[self.shape](place, self.period)
            if self.saw
            else _UP[self.shape](half - abs(half - place), half)
        )
        return self.low + (self.high - self.low) * up


def _check(shape: str, **counts: int) -> None:
    if shape not in _UP:
        fix = did_you_mean(shape, _UP) or f"Choose one of {', '.join(_UP)}."
        raise InputError(f"There is no shape {shape!r} of a ramp.", fix=fix)
    for name, count in counts.items():
        if count < (1 if name == "period" else 0):
            raise InputError(f"{name} is {count}; it is a count of steps.")
