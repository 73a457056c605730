"""Periods as people write them: "1 epoch", "100 steps", "never"."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from assay.core.errors import InputError
from assay.core.events import Event, Every, Handler

_PERIOD = re.compile(r"\s*(\d+)\s*(epochs?|steps?)\s*")


def every(period: str, fn: Callable[..., Any], *, priority: int = 0, name: str = "") -> Handler | None:
    """A handler for `fn` each time that much training is completed; None for "never".

    >>> every("2 epochs", print).event
    <Event.EPOCH_END: 'epoch_end'>
    """
    if period.strip() == "never":
        return None
    match = _PERIOD.fullmatch(period)
    if match is None or int(match[1]) < 1:
        raise InputError(f"{period!r} is no period.", fix='Write "1 epoch", "100 steps" or "never".')
    event = Event.EPOCH_END if match[2].startswith("epoch") else Event.STEP_END
    return Handler(event=event, fn=fn, when=Every(int(match[1])), priority=priority, name=name)
