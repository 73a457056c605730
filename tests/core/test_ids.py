"""Ids and folder names."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.ids import folder_name, id_of_folder, new_run_id, slug


def test_ids_are_eight_characters_that_never_read_as_a_number() -> None:
    ids = {new_run_id() for _ in range(2_000)}

    assert len(ids) == 2_000
    assert all(id_of_folder(f"261121-0339-{each}") == each and each[0].isalpha() for each in ids)


@given(st.text(), st.integers(1, 60))
def test_a_slug_is_safe_as_a_part_of_any_file_name(text: str, limit: int) -> None:
    made = slug(text, limit=limit)

    assert re.fullmatch(r"([a-z0-9]+(-[a-z0-9]+)*)?", made)
    assert len(made) <= limit
    assert slug(made, limit=limit) == made


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2099, 12, 31)), st.text())
def test_the_id_is_found_in_every_folder_name(created: datetime, tag: str) -> None:
    run_id = new_run_id()

    assert id_of_folder(folder_name(created, run_id, tag)) == run_id


def test_a_folder_is_named_by_time_id_and_tag() -> None:
    created = datetime(2026, 11, 21, 3, 39, tzinfo=UTC)

    assert folder_name(created, "kq3f7abc", "MNIST CNN!") == "261121-0339-kq3f7abc-mnist-cnn"
    assert folder_name(created, "kq3f7abc", "???") == "261121-0339-kq3f7abc"


@pytest.mark.parametrize(
    "name",
    [
        "runs",
        "261121-0339",
        "261121-0339-kq3f7ab",
        "261121-0339-KQ3F7ABC",
        "261121-0339-kq3f7abcx",
        "x-kq3f7abc",
        "",
    ],
)
def test_other_names_have_no_id(name: str) -> None:
    assert id_of_folder(name) is None
