"""Periods as people write them: "1 epoch", "100 steps", "never"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.core.errors import InputError
from assay.core.events import Event, Every, Handler
from assay.core.schema import parse_period


def every(period: str, fn: Callable[..., Any], *, priority: int = 0, name: str = "") -> Handler | None:
    """A handler for `fn` each time that much training is completed; None for "never".

    >>> every("2 epochs", print).event
    <Event.EPOCH_END: 'epoch_end'>
    """
    try:
        parsed = parse_period(period)
    except ValueError as error:
        raise InputError(f"{error}.") from None
    if not parsed.count:
        return None
    event = Event.EPOCH_END if parsed.unit == "epoch" else Event.STEP_END
    return Handler(event=event, fn=fn, when=Every(parsed.count), priority=priority, name=name)
