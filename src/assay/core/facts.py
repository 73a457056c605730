"""Facts that a run tells about itself while it trains, and the names of its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from assay.core.errors import RecordError

EndStatus = Literal["finished", "failed", "stopped"]
END_STATUSES: tuple[EndStatus, ...] = get_args(EndStatus)

COSTS = ("speed/", "time/", "memory/")
"""Prefixes of the metrics of cost: of time and memory, not of what was learned."""

MAX_NAME_BYTES = 0xFFFF
"""Length of the longest name of a metric, in UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Begin of an attempt: the first launch of a run (attempt 1) or a resume, from `step`."""

    attempt: int
    step: int = 0
    checkpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Evaluation of a split. `partial` says how much of the split was used, when not all of it.

    `at_stop`: it was made as the run was cut short. A run that is resumed knows nothing of it.
    """

    split: str
    step: int
    metrics: Mapping[str, float]
    samples: int = 0
    seconds: float = 0.0
    partial: str = ""
    at_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Checkpoint complete on disk. `best`: the best so far by the run's own criterion."""

    name: str
    kind: Literal["checkpoint", "keypoint", "best", "model"]
    step: int
    size_bytes: int = 0
    seconds: float = 0.0
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Warning to the user: nothing stopped because of it."""

    message: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Change of the training while it ran, at `step`: `what` was `before` and is `after`."""

    what: str
    step: int
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """End of an attempt.

    `reason` is one line, `traceback` the user's part of the stack on failure.
    """

    status: EndStatus
    step: int
    reason: str = ""
    traceback: str = ""


RunFact = Started | Evaluated | Saved | Warned | Changed | Ended


def check_metric_name(name: str) -> None:
    """Raise RecordError unless a metric's name is text, not empty and not absurdly long."""
    if not isinstance(name, str):
        raise RecordError(f"A metric's name must be text, not {type(name).__name__} ({name!r}).")
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise RecordError(
            f"A metric's name has 1 to {MAX_NAME_BYTES} bytes; this one has {len(name)} characters."
        )
