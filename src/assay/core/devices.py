"""Devices as people write them (`cpu`, `cuda:1`, `0`, `cuda:0,1`, `0-3`); the number of cores."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from assay.core.errors import InputError

_ITEM = re.compile(
    r"(?:(?P<kind>[A-Za-z]\w*)(?::(?=\d))?)?(?:(?P<first>\d+)(?:-(?P<last>\d+))?)?", re.ASCII
)
_MOST = 1024


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_names(given: str | int | Sequence[str | int]) -> tuple[str, ...]:
    """Return the full names of the devices of a list.

    Raises InputError for anything that is not a list of devices, or that names a device twice.

    >>> device_names("cuda:0,1"), device_names("0-2"), device_names([1, "cpu"])
    (('cuda:0', 'cuda:1'), ('cuda:0', 'cuda:1', 'cuda:2'), ('cuda:1', 'cpu'))
    """
    if isinstance(given, str):
        items = [item.strip() for item in given.split(",")]
    else:
        items = [str(item) for item in (given if isinstance(given, Sequence) else [given])]
    names: list[str] = []
    kind = ""
    for item in items:
        found = _ITEM.fullmatch(item)
        if found is None or not item:
            if len(items) == 1 and isinstance(given, str):
                return (item,)  # one name, which torch knows or not
            raise InputError(
                f"{_show(given)} is no list of devices.", fix="Write cpu, cuda:1, or cuda:0,1."
            )
        numbers = _numbers(found["first"], found["last"], given)
        # A number alone is one more of the kind before it: cuda:0,1.
        kind = found["kind"] or kind or "cuda"
        names += [f"{kind}:{number}" for number in numbers] if found["first"] else [kind]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"{_show(given)} names {twice} twice.",
            fix="A run has its device to itself: name each once.",
        )
    return tuple(names)


def _numbers(first: str | None, last: str | None, given: object) -> range:
    low = int(first or 0)
    high = int(last) if last is not None else low
    if high < low or high - low >= _MOST:
        raise InputError(
            f"{_show(given)} is no list of devices.", fix="A range goes upwards, as in 0-3."
        )
    return range(low, high + 1)


def _show(given: object) -> str:
    return repr(given) if isinstance(given, str) else str(given)
