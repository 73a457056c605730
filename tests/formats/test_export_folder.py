"""Differences between an exported model and that of the record."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.formats.export_folder import OutputDifference, sha256_of


def difference(exported: Any, recorded: Any) -> OutputDifference:
    return OutputDifference.between(np, np.array(exported), np.array(recorded))


@pytest.mark.parametrize(
    ("exported", "recorded", "is_within"),
    [
        pytest.param([1.00009, 50], [1.0, 50], True, id="relative to the value"),
        pytest.param([1.0002, 50], [1.0, 50], False, id="above the tolerance"),
        pytest.param([6.003e-5, 0.5], [6e-5, 0.5], True, id="5e-4 of a value near 0"),
        pytest.param([2e-5, 1e-5], [1e-5, 2e-5], False, id="other values where all are small"),
        pytest.param([-1e9, 1.5, 1.0], [-1e9, 1.0, 1.0], False, id="beside one huge value"),
        pytest.param([100_000, 1], [100_001, 1], False, id="integers have to be equal"),
        pytest.param([math.inf, math.nan, 1], [math.inf, math.nan, 1], True, id="same places"),
        pytest.param([1.0, math.nan, 1], [math.inf, math.nan, 1], False, id="infinity"),
        pytest.param([math.inf, 0, 1], [math.inf, math.nan, 1], False, id="NaN"),
        pytest.param([1.0, 2], [1.0, 2, 3], False, id="another shape"),
        pytest.param([], [], True, id="nothing"),
        pytest.param([0.0], [0.0], True, id="zero"),
    ],
)
def test_relative_and_absolute_differences_count_together(
    exported: Any, recorded: Any, is_within: bool
) -> None:
    assert difference(exported, recorded).is_within(1e-4) is is_within


def test_the_larger_one_of_each_batch_is_kept() -> None:
    first, second = difference([1.0, 3.0], [1.0, 2.0]), difference(104.0, 100.0)

    found = first.or_larger(second)

    assert (found.absolute, found.largest) == (4.0, 100.0)
    assert found.beyond == second.beyond > first.beyond


def test_a_pipe_in_the_place_of_a_model_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")

    with pytest.raises(OSError, match="pipe"):
        sha256_of(tmp_path / "model.onnx")
