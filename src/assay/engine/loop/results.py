"""Results of steps: recorded at once on the CPU, or fetched from the device many steps later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from assay.core.events import Event
from assay.core.facts import Warned
from assay.core.ports import NullRecorder
from assay.engine.data.source import Window
from assay.engine.loop.run_parts import RunParts
from assay.engine.numerics.deferred import (
    DeferredStep,
    DeferredSteps,
    DeferredUpdate,
    Sums,
    fetch_means,
)
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.optimizer_step_base import OptimizerStepBase


class StepResults:
    """Loss, norm, learning rate and logged means of each step, for the record.

    `deferred` holds the steps whose numbers still lie on the device; None where each step is read
    at once. `go_back(step, error)` is called for a fetched step that was not finite.
    """

    def __init__(
        self,
        parts: RunParts,
        *,
        log_every: int,
        go_back: Callable[[DeferredStep, NonFiniteError], None],
    ) -> None:
        self.parts = parts
        self.log_every = log_every
        self.go_back = go_back
        self.deferred: DeferredSteps | None = None
        self.is_deferring = False
        self.is_left_out = False
        self._says_empty = True
        self._is_silent = False

    def begin(self, *, defer_to: torch.device | None) -> None:
        """Begin a run; with `defer_to` numbers of steps wait on that device."""
        backward = self.parts.process.backward
        self.deferred = None if defer_to is None else DeferredSteps(defer_to)
        self.is_deferring = self.deferred is not None and backward.defer(self.deferred.flag)
        if self.deferred is not None and not self.is_deferring:
            if self.parts.ranks.is_distributed:
                self.deferred = None  # shards and stages read each step, which is documented
            else:
                self._warn_waits()
        self._says_empty = not backward.num_empty
        # Ranks merge what they logged, whether or not this one records it.
        self._is_silent = (
            isinstance(self.parts.recorder, NullRecorder)
            and not self.parts.ranks.is_distributed
            and not self.deferred
        )

    @property
    def lasting_flag(self) -> Tensor | None:
        """Device flag, set by the first non-finite step; None if every loss is read at once."""
        if self.deferred is None or not self.is_deferring:
            return None
        if self.parts.process.backward.non_finite != "stop":
            return None
        return self.deferred.flag

    def end_step(self, window: Window, now: float) -> None:
        """Record the step that was just completed, or let its numbers wait on the device."""
        state = self.parts.state
        if self._is_silent and state.mean_loss is None:
            return
        if self.deferred is not None:
            self._defer(self.deferred, window, now)
            return
        if state.mean_loss is not None:
            state.mean_loss.add(state.loss)
        if self._is_recorded(state.step):
            self.parts.recorder.log(self._results(), state.step)
        else:
            self.parts.logged.means.clear()
            self._record(self._epoch(), state.step)

    def is_late(self) -> bool:
        """Return whether what waits on the device has waited long enough."""
        return self.deferred is not None and self.deferred.is_due(perf_counter())

    def fetch(self) -> None:
        """Fetch and record what waits on the device; NonFiniteError if a step was not finite.

        After another error nothing more is raised, and if that is one of the device, what waits is
        lost.
        """
        with suppress(RuntimeError) if self.parts.state.error is not None else nullcontext():
            self._fetch()

    def _fetch(self) -> None:
        if self.deferred is None:
            return
        state, backward = self.parts.state, self.parts.process.backward
        for step, values, means in self.deferred.fetch():
            points = {f"train/{name}": value for name, value in means.items()}
            if step.update is not None:
                step.update.recall(values)
                try:
                    made = step.update.judge(values, step.step - 1)
                except NonFiniteError as error:
                    state.loss = self.deferred.loss
                    self.go_back(step, error)
                    return
                if not (made or step.is_left_out):
                    self.count_left_out()
                self.deferred.loss = state.loss = backward.loss
                if state.mean_loss is not None:
                    state.mean_loss.add(backward.loss)
                points |= backward.points()
                if step.epoch is not None:
                    points["epoch"] = float(step.epoch)
            self._record(points, step.step)

    def count_left_out(self) -> None:
        """Count an update that was left out; say once if nothing in its window had a weight."""
        self.parts.state.left_out += 1
        if self._says_empty and self.parts.process.backward.num_empty:
            self._says_empty = False
            message = (
                "An update was left out and counted as skipped: no label of its window counts (all"
                " are ignored, or their weights sum to zero). Others like it are left out without a"
                " word."
            )
            self.parts.recorder.tell(Warned(message=message, step=self.parts.state.step))

    def close(self) -> None:
        """Read each update at once again."""
        if self.deferred is not None:
            self.deferred = None
            self.parts.process.backward.defer(None)

    def _warn_waits(self) -> None:
        optimizers = self.parts.process.backward.optimizers.values()
        kinds = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
        message = (
            "Each step waits for the device, to see if it is finite:"
            f" {kinds} cannot leave out an update there."
        )
        self.parts.recorder.tell(Warned(message=message, step=self.parts.state.step))

    def _defer(self, steps: DeferredSteps, window: Window, now: float) -> None:
        """Let the numbers of the step wait on the device; fetch all that wait when it is due."""
        state, backward = self.parts.state, self.parts.process.backward
        update = backward.deferred
        if update is None:
            loss, points = state.loss, self._results()
            if any(step.update is not None for step in steps.waiting):
                self._fetch()  # steps before this one
            steps.loss = state.loss = loss
            if state.mean_loss is not None:
                state.mean_loss.add(loss)
            self._record(points, state.step)
        else:
            state.loss = partial(_loss_of, backward, update)
        ranks = self.parts.ranks
        logged = self._take_logged()
        if update is not None or logged:
            before = {
                "epoch": state.epoch,
                "epoch_step": state.epoch_step - 1,
                "step": state.step - 1,
                "micro_step": state.micro_step - len(window.batches),
                "samples": state.samples - window.samples,
                "epoch_samples": state.epoch_samples - window.samples,
                "ends_epoch": False,
            }
            epoch = state.epoch if state.epoch_step == 1 else None
            waits = DeferredStep(state.step, update, logged, before, epoch, self.is_left_out)
            steps.waiting.append(waits)
        is_due = steps.is_due(now) and not ranks.is_distributed  # those agree on it
        if is_due or self.parts.bus.points[Event.STEP_END].is_due_for_few(state.step):
            self._fetch()

    def _results(self) -> Mapping[str, float]:
        """Return what is recorded of the newest step, by name."""
        parts, state, backward = self.parts, self.parts.state, self.parts.process.backward
        points = backward.points()
        if self.deferred is None and (parts.ranks.step.has_logged or parts.logged.means):
            logged = fetch_means(self._take_logged())
            points = {f"train/{name}": value for name, value in logged.items()} | points
        return points if state.epoch_step != 1 else {**points, **self._epoch()}

    def _take_logged(self) -> Sums:
        """Return (sum, weight) by name of what was logged in the newest step, over all ranks.

        What this rank has logged since they agreed on whether there is something is of the next.
        """
        ranks = self.parts.ranks
        if not ranks.is_distributed:
            return self.parts.logged.take()
        return self.parts.logged.take(ranks) if ranks.step.has_logged else {}

    def _epoch(self) -> dict[str, float]:
        """Return the epoch in its first step; it holds for every step from there on."""
        state = self.parts.state
        return {"epoch": float(state.epoch)} if state.epoch_step == 1 else {}

    def _is_recorded(self, step: int) -> bool:
        return self.log_every > 0 and not step % self.log_every

    def _record(self, points: Mapping[str, float], step: int) -> None:
        if not self._is_recorded(step):
            points = {name: value for name, value in points.items() if name == "epoch"}
        if points:
            self.parts.recorder.log(points, step)


def _loss_of(backward: OptimizerStepBase, update: DeferredUpdate) -> float:
    """Return the loss of a deferred update; waits for the device."""
    update.recall(update.numbers.tolist())
    return backward.loss
