"""Lines of golden files that one of two runs lacks."""

from __future__ import annotations

import pytest

from assay.formats.golden_file import CALLS, DRAWS, ORDER, WHOLE, GoldenLine
from assay.proof.prove import align_golden
from assay.query.traces import ABSENT

EVERY = [
    GoldenLine(0, "init", WHOLE, "a"),
    GoldenLine(1, "data", ORDER, "b"),
    GoldenLine(1, "data", WHOLE, "c"),
    GoldenLine(1, "forward", CALLS, "d"),
    GoldenLine(1, "forward", DRAWS, "e"),
    GoldenLine(1, "loss", WHOLE, "0.5"),
    GoldenLine(1, "average", WHOLE, "f"),
]
OF_BEFORE = [line for line in EVERY if line.module == WHOLE and line.phase != "average"]


def test_a_golden_file_of_before_is_compared_in_what_it_has() -> None:
    assert align_golden(OF_BEFORE, EVERY).difference is None


@pytest.mark.parametrize("phase", ["data", "average"])
def test_what_a_golden_file_has_and_a_run_lacks_is_a_difference(phase: str) -> None:
    first = align_golden(EVERY, OF_BEFORE if phase == "data" else EVERY[:-1]).difference

    assert first is not None
    assert (first.phase, first.right) == (phase, ABSENT)


def test_random_numbers_that_are_no_longer_drawn_are_named_where_the_loss_is_another() -> None:
    now = [line for line in EVERY if line.phase not in ("forward", "loss")]
    now.insert(3, GoldenLine(1, "loss", WHOLE, "0.25"))

    first = align_golden(EVERY, now).difference

    assert first is not None
    assert (first.phase, first.right) == ("forward", ABSENT)
