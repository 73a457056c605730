"""Events of a training run, and the handlers that listen to them.

The loop, as pseudo-code; a test compares it with a real run:

    run_begin
    for each epoch:
        epoch_begin
        for each window of micro-batches:            # one window, one optimizer step
            step_begin
            for each batch of the window:
                backward_begin
                forward, loss, gradients
                backward_end
            update, step += 1
            step_end
        epoch_end
    run_end

    exception                                        # in place of the rest, when something raised

Handlers may evaluate and save; while they do, these happen inside the event that they listen to:

    eval_begin                                       # one split
    for each batch:
        eval_step_begin
        forward
        eval_step_end
    eval_end

    checkpoint_begin
    write
    checkpoint_end

`step_*` count optimizer steps, `epoch_*` epochs and `backward_*` micro-batches, and continue when a
run is resumed; the others count their occurrences since the start or the resume. All count what is
completed, from 0 (so the first `step_end` has count 1, the first `step_begin` count 0). An epoch
that is cut short has no `epoch_end`; a run that is resumed within an epoch has its `epoch_begin`
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, Protocol


class Event(StrEnum):
    """Moment of a run. The value is its name in configs, `engine.on(...)` and `assay check`."""

    RUN_BEGIN = "run_begin"
    RUN_END = "run_end"
    EPOCH_BEGIN = "epoch_begin"
    EPOCH_END = "epoch_end"
    STEP_BEGIN = "step_begin"
    STEP_END = "step_end"
    BACKWARD_BEGIN = "backward_begin"
    BACKWARD_END = "backward_end"
    EVAL_BEGIN = "eval_begin"
    EVAL_END = "eval_end"
    EVAL_STEP_BEGIN = "eval_step_begin"
    EVAL_STEP_END = "eval_step_end"
    CHECKPOINT_BEGIN = "checkpoint_begin"
    CHECKPOINT_END = "checkpoint_end"
    EXCEPTION = "exception"


NEVER = 1 << 62
"""A count that is never reached."""


class When(Protocol):
    """Counts of an event at which a handler fires; a value that can be compared and printed."""

    def next(self, count: int) -> int:
        """Return the first count >= `count` at which the handler fires, or NEVER."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Condition: every multiple of `n`, from `start` on (`start` 0 excludes count 0 itself)."""

    n: int = 1
    start: int = 0

    def next(self, count: int) -> int:
        """Return the first multiple of `n` from `count` on; counted from `start` if that is set.

        >>> [Every(3).next(count) for count in (0, 1, 3, 4)]
        [3, 3, 3, 6]
        >>> Every(3, start=1).next(0)
        1
        """
        if self.start:
            return (
                self.start
                if count <= self.start
                else self.start + -(-(count - self.start) // self.n) * self.n
            )
        return max(-(-count // self.n) * self.n, self.n)

    def __str__(self) -> str:
        return "always" if self.n == 1 and not self.start else f"every {self.n}"


@dataclass(frozen=True, slots=True)
class EveryShare:
    """Condition on steps: each that completes another `share` of an epoch of `epoch_length`.

    The bus of an engine fills in the length, which the engine knows.
    """

    share: Fraction
    epoch_length: int = 0

    def next(self, count: int) -> int:
        """Return the first step from `count` on that completes another share.

        >>> when = EveryShare(Fraction("0.25"), 10)
        >>> [when.next(count) for count in (0, 4, 6, 9, 11)]
        [3, 5, 8, 10, 13]
        """
        steps = self.share * self.epoch_length
        return math.ceil(max(1, (count - 1) // steps + 1) * steps) if steps else NEVER

    def __str__(self) -> str:
        return f"every {float(self.share):g} of an epoch"


@dataclass(frozen=True, slots=True)
class At:
    """Condition: exactly these counts."""

    counts: frozenset[int]

    def next(self, count: int) -> int:
        """Return the first of the counts from `count` on, `NEVER` after the last.

        >>> At(frozenset({5, 9})).next(6)
        9
        """
        return min((each for each in self.counts if each >= count), default=NEVER)

    def __str__(self) -> str:
        return "at " + ", ".join(map(str, sorted(self.counts)))


@dataclass(frozen=True, slots=True)
class Always:
    """Every time, count 0 included."""

    def next(self, count: int) -> int:
        return count

    def __str__(self) -> str:
        return "always"


ALWAYS = Always()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """Function to call at an event.

    At one moment the lower `priority` runs first, then the older one.

    `fn` may ask for what it needs by naming parameters (state, engine, model, ...); they are filled
    in once, when the handler is added, not each time.
    """

    event: Event
    fn: Callable[..., Any]
    when: When = ALWAYS
    priority: int = 0
    name: str = field(default="")

    def __post_init__(self) -> None:
        if not self.name:
            owner = getattr(self.fn, "__self__", None)
            name = getattr(self.fn, "__name__", type(self.fn).__name__)
            object.__setattr__(
                self, "name", f"{type(owner).__name__}.{name}" if owner is not None else name
            )
