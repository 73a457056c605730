"""Periods as people write them: "1 epoch", "100 steps", "never"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from assay.core.errors import InputError
from assay.core.events import NEVER, Event, Every, Handler, When
from assay.core.schema import parse_period


def every(
    period: str, fn: Callable[..., Any], *, priority: int = 0, name: str = ""
) -> Handler | None:
    """Return a handler that calls `fn` once per period of training; None for "never".

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


def steps(period: str) -> Every | None:
    """When a period of steps is completed; None for "never". InputError for a period of epochs.

    >>> steps("100 steps")
    Every(n=100, start=0)
    """
    handler = every(period, print)
    if handler is not None and handler.event != Event.STEP_END:
        raise InputError(
            f"{period!r} counts epochs; here steps are counted.",
            fix='Write "100 steps", for example.',
        )
    return handler.when if handler is not None and isinstance(handler.when, Every) else None


@dataclass(frozen=True, slots=True)
class Before:
    """For `step_begin`: the step is about to begin with whose `step_end` another one fires.

    >>> [Before(Every(100)).next(count) for count in (0, 99, 100)]
    [99, 99, 199]
    """

    when: When

    def next(self, count: int) -> int:
        later = self.when.next(count + 1)
        return NEVER if later == NEVER else later - 1

    def __str__(self) -> str:
        return str(self.when)
