"""Numbers and times as people say them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core import formatting
from assay.core.formatting import age, duration, moment, number, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.004, "0 s"),
        (0.42, "0.42 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (72, "1 min 12 s"),
        (3599.7, "1 h"),
        (3661, "1 h 1 min"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
        (8_640_000, "100 d"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0, 1e9))
def test_every_duration_can_be_said(seconds: float) -> None:
    assert duration(seconds).split()[1] in ("s", "min", "h", "d")


def test_an_age_is_one_unit_and_a_date_when_it_is_long() -> None:
    now = 1_700_000_000 * 10**9

    def ago(seconds: float) -> str:
        return age(now - int(seconds * 10**9), now)

    assert [ago(s) for s in (-5, 0, 1, 59, 60, 3599, 3600, 86_399, 86_400, 86_400 * 59)] == [
        "now",
        "now",
        "1 s ago",
        "59 s ago",
        "1 min ago",
        "59 min ago",
        "1 h ago",
        "23 h ago",
        "1 d ago",
        "59 d ago",
    ]
    assert ago(86_400 * 61).startswith("2023-09")


def test_numbers_are_short_and_whole_ones_whole() -> None:
    numbers = (0.1, 1 / 3, 1e-9, 123456.0, 1e20, float("nan"), float("-inf"), -0.5, 0.0)
    assert [number(x) for x in numbers] == [
        "0.1",
        "0.33333",
        "1e-09",
        "123456",
        "1e+20",
        "nan",
        "-inf",
        "-0.5",
        "0",
    ]


def test_sizes_are_in_units_of_a_thousand() -> None:
    assert [size(n) for n in (0, 999, 1000, 9_949, 1_500_000, 10**13)] == [
        "0 B",
        "999 B",
        "1 kB",
        "9.95 kB",
        "1.5 MB",
        "10 TB",
    ]


def test_a_moment_is_to_the_second() -> None:
    assert len(moment(10**18)) == len("2001-09-09 01:46:40")


def test_each_way_to_write_a_quantity_is_defined_once() -> None:
    source = Path(formatting.__file__).parents[1]
    for name in ("age", "count", "duration", "moment", "size", "size_text"):
        pattern = re.compile(
            rf"^def {name}\((seconds|count|number|value|then_ns|ns)\b", re.MULTILINE
        )
        homes = [
            path.name for path in source.rglob("*.py") if pattern.search(path.read_text("utf-8"))
        ]
        assert homes in ([], ["formatting.py"]), name
