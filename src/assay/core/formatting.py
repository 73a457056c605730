"""Numbers, sizes, counts and times as people say them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

_LONG_AGO_S = 60 * 86_400


def duration(seconds: float) -> str:
    """Return a duration as text, in at most two units.

    >>> [duration(s) for s in (0.42, 4.2, 72, 7500, 100_000)]
    ['0.42 s', '4.2 s', '1 min 12 s', '2 h 5 min', '1 d 3 h']
    """
    if not math.isfinite(seconds):
        return "? s"
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds >= 0.01 else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, part, size in (("min", "s", 60), ("h", "min", 3_600), ("d", "h", 86_400)):
        if whole < size * (60 if unit == "min" else 24) or unit == "d":
            many, rest = divmod(whole, size)
            rest //= size // (60 if unit != "d" else 24)
            return f"{many} {unit} {rest} {part}" if rest else f"{many} {unit}"
    raise AssertionError("days have no end")


def age(then_ns: int, now_ns: int) -> str:
    """Return the time since `then_ns` in one unit; a date for what is long past.

    >>> [age(0, s * 10**9) for s in (0, 59, 60, 7_300, 200_000)]
    ['now', '59 s ago', '1 min ago', '2 h ago', '2 d ago']
    """
    seconds = (now_ns - then_ns) // 10**9
    if seconds < 1:
        return "now"
    if seconds >= _LONG_AGO_S:
        return f"{datetime.fromtimestamp(then_ns / 1e9):%Y-%m-%d}"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def number(value: float) -> str:
    """Five digits that count, and no more than it takes.

    >>> [number(x) for x in (0.5, 1234567.0, 3.14159265, 1e-9, float("nan"), 100.0)]
    ['0.5', '1234567', '3.1416', '1e-09', 'nan', '100']
    """
    if value == value and abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return f"{value:.5g}"


def size(count: int) -> str:
    """Return a number of bytes as text, in decimal units with three digits at most.

    >>> size(0), size(999), size(1_234_567), size(5 * 10**10), size(12 * 10**14)
    ('0 B', '999 B', '1.23 MB', '50 GB', '1200 TB')
    """
    amount = float(count)
    unit = "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.3g} {unit}" if amount < 999.5 else f"{amount:.0f} {unit}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "run"), count(3, "file"), count(12_000, "step")
    ('1 run', '3 files', '12,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def name_some(names: Sequence[str], most: int = 3, noun: str = "") -> str:
    """Return the first `most` names, and how many more there are.

    >>> name_some(["a", "b"]), name_some("abcde"), name_some("abcde", 4, "run")
    ('a, b', 'a, b, c and 2 more', 'a, b, c, d and 1 run more')
    """
    rest = len(names) - most
    more = f" and {count(rest, noun) if noun else rest} more" if rest > 0 else ""
    return f"{', '.join(names[:most])}{more}"


def moment(ns: int) -> str:
    """A time of day with its date, in the time zone of whoever reads it."""
    return f"{datetime.fromtimestamp(ns / 1e9).astimezone():%Y-%m-%d %H:%M:%S}"
