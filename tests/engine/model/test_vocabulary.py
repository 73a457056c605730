"""The size of an embedding from that of a vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.engine import padded_vocabulary


@pytest.mark.row("E57")
@given(
    size=st.integers(1, 300_000), multiple=st.sampled_from([1, 64, 128]), tensor=st.integers(1, 16)
)
def test_a_padded_size_is_the_least_that_has_room_and_divides(
    size: int, multiple: int, tensor: int
) -> None:
    padded = padded_vocabulary(size, multiple=multiple, tensor=tensor)

    assert padded % (multiple * tensor) == 0
    assert size <= padded < size + multiple * tensor
    assert padded_vocabulary(size) % 128 == 0


def test_the_size_may_be_that_of_a_tokenizer() -> None:
    assert padded_vocabulary({"a": 0, "b": 1}, tensor=2) == 256


def test_a_size_below_one_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="tensor is 0; it must be at least 1"):
        padded_vocabulary(5, tensor=0)
