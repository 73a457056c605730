"""Periods as people write them become handlers of the right event."""

from __future__ import annotations

import pytest

from assay.core.errors import InputError
from assay.core.events import Event, Every
from assay.engine.loop.bus import every


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("period", "event", "count"),
    [
        ("1 epoch", Event.EPOCH_END, 1),
        ("3 epochs", Event.EPOCH_END, 3),
        ("1 step", Event.STEP_END, 1),
        ("500 steps", Event.STEP_END, 500),
    ],
)
def test_a_period_counts_completed_steps_or_epochs(period: str, event: Event, count: int) -> None:
    handler = every(period, nothing, priority=7, name="Save")

    assert handler is not None
    assert (handler.event, handler.when) == (event, Every(count))
    assert (handler.fn, handler.priority, handler.name) == (nothing, 7, "Save")


def test_a_handler_without_a_name_has_that_of_its_function() -> None:
    handler = every("1 epoch", nothing)

    assert handler is not None
    assert handler.name == "nothing"


def test_never_is_no_handler() -> None:
    assert every("never", nothing) is None


@pytest.mark.parametrize(
    "period", ["", "5", "epoch", "-1 steps", "1.5 steps", "2 weeks", "steps 5"]
)
def test_what_is_no_period_is_refused_with_the_forms_there_are(period: str) -> None:
    with pytest.raises(InputError) as caught:
        every(period, nothing)

    assert repr(period) in caught.value.what
    assert "epoch" in caught.value.what
