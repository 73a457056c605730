"""Limits of a parameter: one of a few values, or a number between two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from assay.core.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Choice:
    """Parameter with one of the values `choices`; the first is the default."""

    choices: tuple[Any, ...]

    @property
    def default(self) -> Any:
        return self.choices[0]

    def wanted(self) -> str:
        return f"one of {', '.join(map(repr, self.choices))}"

    def allows(self, value: Any) -> bool:
        return any(_alike(value, choice) for choice in self.choices)

    def near(self, value: Any) -> str:
        """Return a suggestion for a user who gave `value`."""
        return did_you_mean(str(value), map(str, self.choices))


@dataclass(frozen=True, slots=True)
class Range:
    """Number from `left` to `right`, both included."""

    default: float
    left: float
    right: float

    def wanted(self) -> str:
        match math.isinf(self.left), math.isinf(self.right):
            case True, True:
                return "a number"
            case True, False:
                return f"at most {self.right!r}"
            case False, True:
                return f"at least {self.left!r}"
            case _:
                return f"from {self.left!r} to {self.right!r}"

    def allows(self, value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.left <= value <= self.right  # false for nan

    def near(self, value: Any) -> str:
        return ""


Limit = Choice | Range


def choice(*choices: Any) -> Any:
    """Declare a parameter that is one of `choices`, by default the first.

    Typed Any so that it may be assigned to a parameter of any type.
    """
    if not choices:
        raise InputError("choice() needs at least one value.")
    return Choice(choices)


def arange(default: float, left: float = -math.inf, right: float = math.inf) -> Any:
    """Declare a number with a default that stays between `left` and `right`, both included."""
    limit = Range(default, left, right)
    if not limit.allows(default):
        raise InputError(
            f"arange({default!r}, {left!r}, {right!r}): the default must be {limit.wanted()}."
        )
    return limit


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
