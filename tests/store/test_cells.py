"""The order of values: the same whether the index has held them or not."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from assay.store.cells import from_cell, in_order, to_cell

values = st.lists(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
    | st.lists(st.integers(0, 3), max_size=2),
    max_size=8,
)


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
def test_numbers_come_before_nan_nan_before_texts_and_nothing_last(
    found: list[Any], descending: bool
) -> None:
    def rank(value: Any) -> int:
        if value is None or value == "":
            return 3
        if isinstance(value, str | list):
            return 2
        return 1 if value != value else 0

    ranks = [rank(each) for each in in_order(((v, v) for v in found), descending=descending)]

    assert ranks == sorted(ranks)


@given(st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text())
def test_a_cell_stands_for_the_value_that_it_was_made_of(value: Any) -> None:
    assert from_cell(to_cell(value)) == value
    assert math.isnan(from_cell(to_cell(math.nan)))  # type: ignore[arg-type]
