"""Bounds of a run: epochs, steps, samples and seconds; the first one reached ends it.

Also the arithmetic that says how long a run is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.core.formatting import count
from assay.engine.data.loader import Loader
from assay.engine.data.source import Source, steps_in
from assay.engine.loop.state import State
from assay.engine.optim.optimizer_step_base import OptimizerStepBase


class ExpectedSteps(NamedTuple):
    """Length of a run in steps, as far as it is known, and that of an epoch.

    `skipped`: how many steps fewer the past epochs had than so many of this length have.
    """

    total: int | None
    epoch: int | None
    skipped: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds as they were given; with none of them a run is one epoch. InputError below 1.

    `max_steps` is the limit of one launch: it stops the run, and schedules count on without it.
    """

    epochs: int | None = None
    steps: int | None = None
    samples: int | None = None
    seconds: float | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        given = (self.epochs, self.steps, self.samples, self.seconds)
        if given == (None, None, None, None):
            object.__setattr__(self, "epochs", 1)
        for name in ("epochs", "steps", "samples", "seconds", "max_steps"):
            bound = getattr(self, name)
            if bound is not None and bound <= 0:
                raise InputError(f"{name} is {bound}; it must be greater than 0.")

    def apply(self, state: State, source: Source) -> None:
        """Set the bounds of the state in epochs and steps, and the expected length of an epoch."""
        state.epoch_length = state.claimed_length = source.steps_per_epoch
        state.max_epochs = self.epochs
        state.step_bound = _least(self.steps, self.max_steps)
        state.last_of_samples = self._last_of_samples(state, source)

    def expect_epoch(self, state: State, source: Source) -> None:
        """Set the expected length of the epoch that begins or is resumed.

        Believe what the data says, unless it has said the same of the last epoch in error.
        """
        epoch = state.epoch if self.epochs is None else min(state.epoch, self.epochs - 1)
        claimed = state.claimed_length = steps_in(source, epoch)
        length = claimed
        if state.length_error is not None and state.length_error[0] == claimed:
            length = state.length_error[1]
        state.epoch_length = None if length is None else max(length, state.epoch_step)
        state.last_of_samples = self._last_of_samples(state, source)

    def _last_of_samples(self, state: State, source: Source) -> int | None:
        """Return the step that reaches the bound in samples; None where nobody can know."""
        if self.samples is None or not isinstance(source, Loader):
            return None
        steps = source.steps_to(max(0, self.samples - state.samples + state.epoch_samples))
        return None if steps is None else max(state.step, state.step - state.epoch_step + steps)

    def reached_limit(self, state: State) -> str:
        """Return the bound that a run has reached, such as "limit of 5 epochs"; "" for none."""
        if self.max_steps is not None and self.cut(state):
            return f"limit of {count(self.max_steps, 'step')}"
        if self.steps is not None and state.step >= self.steps:
            return f"limit of {count(self.steps, 'step')}"
        if self.epochs is not None and state.epoch >= self.epochs:
            return f"limit of {count(self.epochs, 'epoch')}"
        if self.samples is not None and state.samples >= self.samples:
            return f"limit of {count(self.samples, 'sample')}"
        return f"limit of {self.seconds:g} s" if self.seconds is not None else ""

    def cut(self, state: State) -> bool:
        """Return whether `max_steps` alone ends a run here, which is to be resumed."""
        reached = (
            (self.steps is not None and state.step >= self.steps)
            or (self.epochs is not None and state.epoch >= self.epochs)
            or (self.samples is not None and state.samples >= self.samples)
        )
        is_there = self.max_steps is not None and state.step >= self.max_steps
        return is_there and not reached and not state.stop.reason

    def recount(self, state: State, source: Source) -> None:
        """Count the rest of a resumed epoch in batches of the current size.

        Batches before the checkpoint may have been of another size: samples say where the epoch is.
        """
        seen = state.epoch_samples
        if not isinstance(source, Loader) or not seen:
            return
        if seen == state.epoch_step * source.batch_size:
            return
        left = source.steps_after(seen, epoch=state.epoch)
        state.epoch_step = source.steps_in(state.epoch) - left

    def start_schedule(self, state: State, backward: OptimizerStepBase) -> None:
        """Let the schedule count from here; InputError for one that does not fit the run."""
        length = self.length(state)
        backward.skip_steps(length.skipped)
        backward.start(state.step, total=length.total, epoch_length=length.epoch)

    def refit_schedule(self, state: State, backward: OptimizerStepBase) -> bool:
        """Fit the schedule to the length as it is expected now; return whether that changed it."""
        length = self.length(state)
        backward.skip_steps(length.skipped)
        return backward.refit(state.step, total=length.total, epoch_length=length.epoch)

    def length(self, state: State) -> ExpectedSteps:
        """Return the expected length of the run as a schedule counts it."""
        bound = state.step_bound
        if self.max_steps is not None and bound == self.max_steps:
            bound = self.steps
        total = _least(bound, state.last_of_epochs, state.last_of_samples)
        if state.epoch_length is None:
            return ExpectedSteps(total, None, 0)
        place = state.epoch * state.epoch_length + state.epoch_step
        return ExpectedSteps(total, state.epoch_length, place - state.step)

    def refuse_uncounted(self, batch: Any) -> None:
        """Raise InputError if samples bound the run, and nobody knows how many a batch holds."""
        if self.samples is not None:
            raise InputError(
                f"The run is bounded by samples, but how many a {type(batch).__name__} holds is"
                " unknown.",
                fix="Give batches of tensors, or bound the run by steps.",
            )

    def handlers(self, state: State, finish: Callable[[], None]) -> list[Handler]:
        """Return the handlers that call `finish` once enough samples or seconds were used."""
        found = []
        if self.samples is not None:
            check = _SampleBound(state, self, finish)
            # Also as the run begins: one that is resumed may have had enough.
            for event in (Event.RUN_BEGIN, Event.STEP_END):
                found.append(Handler(event=event, fn=check.end_step, priority=-100))
        if self.seconds is not None:
            clock = _SecondBound(self.seconds, finish)
            found.append(Handler(event=Event.RUN_BEGIN, fn=clock.begin, priority=-100))
            found.append(Handler(event=Event.STEP_END, fn=clock.end_step, priority=-100))
        return found


class _SampleBound:
    """Ends the run once so many samples were trained."""

    def __init__(self, state: State, bounds: Bounds, finish: Callable[[], None]) -> None:
        self.state = state
        self.bounds = bounds
        self.finish = finish

    def end_step(self) -> None:
        state = self.state
        if state.step and not state.samples:
            self.bounds.refuse_uncounted(state.batch)
        if state.samples >= (self.bounds.samples or 0):
            self.finish()


class _SecondBound:
    """Ends the run once it has taken so many seconds."""

    def __init__(self, seconds: float, finish: Callable[[], None]) -> None:
        self.seconds = seconds
        self.finish = finish
        self.begun = 0.0

    def begin(self) -> None:
        self.begun = perf_counter()

    def end_step(self) -> None:
        if perf_counter() - self.begun >= self.seconds:
            self.finish()


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def is_done(state: State) -> bool:
    """Return whether a bound was reached or a stop was asked for."""
    is_epoch_over = state.epoch_step == state.epoch_length or state.ends_epoch
    if state.epoch_step and is_epoch_over and not state.stop.reason:
        return False  # resumed between the last step of an epoch and its end
    return bool(
        state.stop.reason
        or (state.max_epochs is not None and state.epoch >= state.max_epochs)
        or (state.step_bound is not None and state.step >= state.step_bound)
    )


def has_ended(state: State) -> bool:
    """Return whether a finished run whose last checkpoint is this has nothing left to train.

    That is more than `is_done`: the checkpoint may be of the last step, before the end of its epoch
    was made and counted.
    """
    is_epoch_over = state.epoch_step == state.epoch_length or state.ends_epoch
    epochs = state.epoch + bool(state.epoch_step and is_epoch_over)
    is_last_epoch = state.max_epochs is not None and epochs >= state.max_epochs
    is_last_step = state.step_bound is not None and state.step >= state.step_bound
    return is_done(state) or is_last_epoch or is_last_step


def arithmetic(loader: Loader, *, epochs: int | None, total: int | None) -> list[str]:
    """Return the lines about the length of a run: at most `total` steps, so many `epochs`.

    An epoch is always a whole pass: 60,000 samples in batches of 128 are 469 steps, or 468 without
    the last one.
    """
    size = loader.order.n
    batch = loader.batch_size
    steps = loader.steps_per_epoch
    rest = size % batch
    how = f", the last {rest:,} left out" if loader.drop_last else ", rounded up"
    epoch = f"{steps:,} ({size:,} samples / {batch:,}{how if rest else ''})"
    if epochs is not None:
        whole = f"{count(epochs, 'epoch')} x {epoch} = {epochs * steps:,} steps"
        is_shorter = total is not None and total < epochs * steps
        lines = [f"{count(total or 0, 'step')}, which come before {whole}" if is_shorter else whole]
    elif total is not None and steps:
        lines = [f"{count(total, 'step')} = {total / steps:.4g} epochs x {epoch}"]
    else:
        lines = [f"an epoch has {epoch} steps"]
    if loader.micro_batch_size != batch:
        lines.append(f"a step has {loader.arithmetic}")
    return lines


def larger(source: Source, *, epochs: int, steps: int) -> tuple[int | None, int | None, str]:
    """Of both bounds the one that is reached last, as (epochs, steps), and the arithmetic.

    InputError where nobody can know which it is.
    """
    length = source.steps_per_epoch
    if length is None:
        raise InputError(
            "Which of epochs and steps is reached last is unknown: nobody knows how many"
            " batches an epoch has.",
            fix='Give one of the two, or [train] until = "first".',
        )
    total = epochs * length
    said = (
        f"the larger of {count(steps, 'step')} and {count(epochs, 'epoch')} x {length:,}"
        f" = {total:,} steps"
    )
    return (epochs, None, said) if total >= steps else (None, steps, said)
