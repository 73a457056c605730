"""Sizes of the parts that a loader of LiBai splits a data set into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.core.errors import InputError


def part_sizes(splits: Sequence[Any]) -> list[int | float]:
    """Return counts or shares for train, validation and test.

    Three whole numbers are counts. Floats are weights, and become shares that sum to 1. LiBai has a
    list for each data set; as the data sets are joined here, all lists must be equal.

    >>> part_sizes([[90.0, 5.0, 5.0]])
    [0.9, 0.05, 0.05]
    """
    lists = [list(each) for each in splits if isinstance(each, Sequence)] or [list(splits)]
    if any(each != lists[0] for each in lists):
        raise InputError(
            f"splits differ: {lists}.", fix="Give all data sets the same three numbers."
        )
    sizes: list[int | float] = lists[0]
    if len(sizes) != 3:
        raise InputError(f"splits are {len(sizes)} numbers; train, valid and test need three.")
    if all(isinstance(size, int) for size in sizes):
        return sizes
    whole = sum(sizes)
    return [size / whole for size in sizes]
