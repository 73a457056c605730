"""Values: of one type, order and equality whether the index has held them or not."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from datetime import date
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from assay.store.cells import compare_cells, from_cell, in_order, to_cell

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
    | st.dates()
    | st.lists(st.integers(0, 3), max_size=2)
)
values = st.lists(scalars, max_size=8)


@given(values, st.booleans())
def test_values_that_the_index_has_held_have_the_same_order(
    found: list[Any], descending: bool
) -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE cells (place, value)")
        database.executemany(
            "INSERT INTO cells VALUES (?, ?)",
            [(i, to_cell(value)) for i, value in enumerate(found)],
        )
        held = [
            (from_cell(cell), place)
            for place, cell in database.execute("SELECT place, value FROM cells ORDER BY place")
        ]

    own = in_order(((value, i) for i, value in enumerate(found)), descending=descending)
    assert in_order(held, descending=descending) == own


@given(values, st.booleans())
def test_numbers_come_first_then_nan_booleans_dates_texts_and_lists_and_nothing_last(
    found: list[Any], descending: bool
) -> None:
    def rank(value: Any) -> int:
        match value:
            case None | "":
                return 6
            case bool():
                return 2
            case date():
                return 3
            case str():
                return 4
            case list():
                return 5
        return 1 if value != value else 0

    ranks = [rank(each) for each in in_order(((v, v) for v in found), descending=descending)]

    assert ranks == sorted(ranks)


@given(scalars)
def test_a_cell_stands_for_the_value_and_type_that_it_was_made_of(value: Any) -> None:
    held = from_cell(to_cell(value))

    assert type(held) is type(value)
    assert held == value or (math.isnan(held) and math.isnan(value))


@given(scalars, scalars, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]))
def test_values_of_one_type_compare_as_in_python_and_those_of_two_are_never_equal(
    left: Any, right: Any, operator: str
) -> None:
    def kind(value: Any) -> str:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return "number" if value == value else "nan"
        return type(value).__name__ if value not in (None, "") else "nothing"

    found = compare_cells(to_cell(left), operator, to_cell(right))

    if kind(left) != kind(right):
        assert found == (operator == "!=")
    elif kind(left) not in ("nan", "nothing", "list"):
        python = "==" if operator == "=" else operator
        assert found == eval(f"left {python} right")
