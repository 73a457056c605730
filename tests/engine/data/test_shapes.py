"""Shapes as text, and batches that are declared in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.engine.data.shapes import declared_batch, shape_of
from assay.engine.numerics.structures import tensors_in

tensors = st.builds(
    lambda dtype, shape: torch.empty(shape, dtype=dtype),
    st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16]),
    st.lists(st.integers(0, 5), max_size=4),
)
batches = st.recursive(
    tensors,
    lambda inside: st.one_of(
        st.lists(inside, min_size=1, max_size=4),
        st.lists(inside, min_size=1, max_size=4).map(tuple),
        st.dictionaries(st.sampled_from(["x", "y", "mask_1"]), inside, min_size=1),
    ),
    max_leaves=5,
)


@given(batches)
def test_what_the_report_says_of_a_batch_declares_one_like_it(batch: Any) -> None:
    declared = declared_batch(shape_of(batch))

    assert shape_of(declared) == shape_of(batch)
    assert all(tensor.is_meta for tensor in tensors_in(declared))


def test_a_bound_gives_values() -> None:
    inputs, target = declared_batch("(float32 [4, 2], int64 [4] < 3)")

    assert inputs.is_meta and target.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    "text",
    [
        *("", "float33 [2]", "float32", "float32 [2", "float32 [x]", "(float32 [2]"),
        *("float32 [2] < 3", "int64 [2] < 0", "{x float32 [2]}", "float32 [2] float32 [2]"),
        *("float32 [2];", "nn [2]"),
    ],
)
def test_what_is_no_batch_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as caught:
        declared_batch(text)

    assert "--batch cannot be read" in caught.value.what
    assert "(float32 [64, 3, 32, 32], int64 [64] < 10)" in caught.value.fix


def test_a_large_structure_is_cut() -> None:
    assert shape_of([torch.ones(1)] * 8) == f"[{'float32 [1], ' * 6}and 2 more]"
    assert shape_of({"a": None}) == "{a: NoneType}"
