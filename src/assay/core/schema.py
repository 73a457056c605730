"""Schema of the standard sections: keys by path, and the units of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from assay.core.keys import Key, keys_of
from assay.core.sections import StandardSections

MAX_INT = 2**63 - 1
"""Largest signed 64-bit integer, and so the largest whole number that a standard key takes."""

SECTIONS = keys_of(StandardSections)
"""Top-level keys of a config, those of [train] and the like within them."""

LOADER_CLASHES: tuple[tuple[str, str, str], ...] = (
    ("sampler", "shuffle", "a sampler says the order"),
    ("sampler", "batch_sampler", "both say the order"),
    ("batch_sampler", "shuffle", "a batch sampler says the order"),
    ("batch_sampler", "batch_size", "a batch sampler says what a batch is"),
    ("batch_sampler", "micro_batch_size", "a batch sampler says what a batch is"),
    ("batch_sampler", "drop_last", "a batch sampler says what a batch is"),
)
"""Keys of a split that say the same thing twice, with why."""

LOADER_OF_WORKERS = ("prefetch", "persistent_workers", "timeout", "worker_init", "start_method")
"""Keys of a split that mean nothing without worker processes."""

LAUNCH: Mapping[str, str] = {
    "device": "--device",
    "debug": "--debug",
    "no_file": "--no-file",
    "nproc": "--nproc",
    "user_dir": "--user-dir",
}
"""Settings of one launch, which are given on the command line and never stand in a file."""

MAKERS: Mapping[str, str] = {
    "variants": "Named overrides: [variants.big] and under it keys of the file with other values.",
    "sweep": "Keys with a list of values each: one run for every point.",
    "partial": "true in a config that is only read by others, and trains nothing itself.",
}
"""Top-level keys about a file. No single config that is made of it has them."""


def is_for_tests(split: str) -> bool:
    """Return True for `test` and `test_...`: splits that `assay test` evaluates."""
    return split == "test" or split.startswith("test_")


def is_for_inference(split: str) -> bool:
    """Return True for `infer` and `infer_...`: data without targets, for `assay test --infer`."""
    return split == "infer" or split.startswith("infer_")


def is_evaluated(split: str) -> bool:
    """Return True for a split that training evaluates, unless the config names others."""
    return split != "train" and not is_for_tests(split) and not is_for_inference(split)


def section(name: str) -> Key | None:
    """Return the standard section `name`."""
    return next((key for key in SECTIONS if key.name == name), None)


def is_standard_table(path: Sequence[str | int]) -> bool:
    """Return True for a table that assay reads itself: a `type` in it is no target."""
    key = find(path)
    is_split = len(path) == 2 and path[0] == "data"
    return not path or is_split or (key is not None and key.kind in ("table", "tables"))


def find(path: Iterable[str | int]) -> Key | None:
    """Return the standard key at `path`; None inside of calls, and for other keys.

    >>> find(["data", "train", "batch_size"]).kind
    'int'
    >>> find(["model", "width"]) is None
    True
    """
    parts = list(path)
    if not parts or not isinstance(parts[0], str):
        return None
    found = section(parts[0])
    rest = parts[1:]
    while found is not None and rest:
        if found.kind == "tables":
            rest = rest[1:]
            if not rest:
                return None
        if found.kind not in ("table", "tables"):
            return None
        found = found.key(rest[0]) if isinstance(rest[0], str) else None
        rest = rest[1:]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Once in `count` epochs or steps; `count` 0 is never. Only epochs have fractions."""

    count: int | Fraction
    unit: Literal["epoch", "step"]


PERIOD_FORMS = 'such as "1 epoch", "0.25 epoch", "100 steps" or "never"'
_PERIOD = re.compile(
    r"(?P<count>(?:0|[1-9]\d{0,17})(?P<part>\.\d{1,9})?) *(?P<unit>epoch|step)s?", re.ASCII
)


def parse_period(text: str) -> Period:
    """Return the period in "2 epochs"; ValueError for text that is none.

    >>> parse_period("100 steps")
    Period(count=100, unit='step')
    >>> parse_period("never").count, parse_period("0.25 epoch").count
    (0, Fraction(1, 4))
    """
    if text == "never":
        return Period(count=0, unit="step")
    found = _PERIOD.fullmatch(text)
    count = Fraction(found["count"]) if found else Fraction()
    is_whole = count.denominator == 1
    if found is None or not count or (found["part"] and found["unit"] == "step"):
        raise ValueError(f"{text!r} is no period, {PERIOD_FORMS}")
    unit: Literal["epoch", "step"] = "epoch" if found["unit"] == "epoch" else "step"
    return Period(count=int(count) if is_whole else count, unit=unit)


STEPS_FORMS = 'such as "1 step", "100 steps" or "never"'


def parse_steps(text: str) -> int:
    """Return the number of steps in "100 steps", 0 for "never"; ValueError for other units.

    >>> parse_steps("100 steps")
    100
    """
    period = parse_period(text)
    if period.unit != "step":
        raise ValueError(f"{text!r} is no number of steps, {STEPS_FORMS}")
    return int(period.count)


DURATION_FORMS = 'such as "90 s", "5 min", "2 h" or "1.5 d"'
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<amount>\d{1,12}(?:\.\d{1,9})?) *(?P<unit>s|min|h|d)", re.ASCII)


def parse_duration_s(text: str) -> float:
    """Return the seconds in "90 s", "5 min", "2 h" or "1.5 d"; ValueError for other text.

    >>> parse_duration_s("5 min")
    300.0
    """
    found = _DURATION.fullmatch(text)
    seconds = float(found["amount"]) * _SECONDS[found["unit"]] if found else 0.0
    if seconds == 0:
        raise ValueError(f"{text!r} is no duration, {DURATION_FORMS}")
    return seconds


_SIZES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(rf"(?P<amount>\d{{1,12}}(?:\.\d{{1,9}})?) *(?P<unit>{'|'.join(_SIZES)})")


def parse_size_bytes(text: str) -> int:
    """Return the bytes in "80GB" or "16 GiB"; ValueError for anything else and for nothing at all.

    >>> parse_size_bytes("1.5 kB"), parse_size_bytes("1GiB")
    (1500, 1073741824)
    """
    found = _SIZE.fullmatch(text.strip())
    size = round(float(found["amount"]) * _SIZES[found["unit"]]) if found else 0
    if size == 0:
        raise ValueError(f"{text!r} is no size; it is a number and one of {', '.join(_SIZES)}")
    return size
