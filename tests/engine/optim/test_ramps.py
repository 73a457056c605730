"""Ramps and cycles of any value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.engine.optim import ramps
from assay.engine.optim.ramps import Cycle, Ramp, Shape

SHAPES: list[Shape] = ["linear", "cosine", "sigmoid"]


@pytest.mark.row("C72")
def test_the_ramps_have_the_values_of_their_formulas() -> None:
    assert ramps.sigmoid_up(0, 100) == math.exp(-5) == pytest.approx(0.006738, abs=1e-6)
    assert ramps.sigmoid_up(50, 100) == pytest.approx(math.exp(-1.25))
    assert ramps.sigmoid_up(100, 100) == 1.0
    assert ramps.linear_up(50, 100) == 0.5
    assert ramps.cosine_down(50, 100) == pytest.approx(0.5)
    assert ramps.cosine_down(25, 100) == pytest.approx((2 + math.sqrt(2)) / 4)

    # Of any value, and in periods.
    assert Ramp(1.0, 3.0, over=100, after=10)(60) == 2.0
    assert [Cycle(0.0, 8.0, period=4)(step) for step in range(9)] == [0, 4, 8, 4, 0, 4, 8, 4, 0]
    assert [Cycle(0.0, 8.0, period=4, saw=True)(step) for step in range(6)] == [0, 2, 4, 6, 0, 2]
    assert Cycle(1.0, 3.0, period=8, shape="cosine")(2) == pytest.approx(2.0)


@given(st.integers(-10, 300), st.integers(0, 200))
def test_a_ramp_stays_between_its_ends_and_down_is_up_in_reverse(step: int, over: int) -> None:
    for shape in SHAPES:
        up, down = getattr(ramps, f"{shape}_up"), getattr(ramps, f"{shape}_down")
        assert 0.0 <= up(step, over) <= up(step + 1, over) <= 1.0
        assert up(over, over) == 1.0
        if over:
            assert down(step, over) == pytest.approx(up(over - step, over), abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_is_low_before_its_ramp_and_high_after(shape: Shape) -> None:
    ramp = Ramp(5.0, -1.0, over=10, after=3, shape=shape)

    assert [ramp(step) for step in (0, 2)] == [5.0, 5.0]
    assert [ramp(step) for step in (13, 99)] == [-1.0, -1.0]
    values = [ramp(step) for step in range(14)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cycle_repeats_itself_and_comes_back_as_it_went(shape: Shape) -> None:
    cycle = Cycle(0.0, 1.0, period=10, shape=shape)

    assert [cycle(step) for step in range(10)] == [cycle(step) for step in range(70, 80)]
    assert [cycle(step) for step in range(11)] == pytest.approx(
        [cycle(10 - step) for step in range(11)]
    )
    assert cycle(5) == 1.0


def test_what_is_no_ramp_is_refused() -> None:
    with pytest.raises(InputError, match="no shape 'cosin'") as caught:
        Ramp(0.0, 1.0, over=10, shape="cosin")  # type: ignore[arg-type]
    assert caught.value.fix == "did you mean `cosine`?"
    with pytest.raises(InputError, match="over is -1"):
        Ramp(0.0, 1.0, over=-1)
    with pytest.raises(InputError, match="period is 0"):
        Cycle(0.0, 1.0, period=0)
