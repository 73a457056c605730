"""How processes are laid out: the arithmetic that a person reads."""

from __future__ import annotations

import pytest

from assay.core.sections import ParallelSection
from assay.engine.parallel.layout import Layout


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"data": 2}, "data 2 = 2 processes"),
        ({"data": 2, "tensor": 2}, "data 2 x tensor 2 = 4 processes"),
        (
            {"tensor": 2, "pipeline": 2, "data": 2, "bucket_mb": 3},
            "pipeline 2 x data 2 x tensor 2 = 8 processes",
        ),
    ],
)
def test_a_layout_says_its_arithmetic_from_the_outside_in(
    settings: dict[str, int], text: str
) -> None:
    assert str(Layout.of(ParallelSection(**settings))) == text


def test_only_data_and_shard_divide_the_samples() -> None:
    layout = Layout(data=2, shard=3, tensor=5, pipeline=7)

    assert (layout.processes, layout.data_parallel_size) == (210, 6)
