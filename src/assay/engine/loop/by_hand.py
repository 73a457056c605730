"""Training by the user's own loop, `for batch in engine`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any

from assay.engine.data.source import Window
from assay.engine.loop.epoch_times import EpochTimes
from assay.engine.loop.styles.own_updates import OwnUpdates
from assay.engine.loop.windows import MicroBatches, TrainStep
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.losses import Losses


class HandTrainer:
    """Hands out the micro-batches of a window; the loop computes gradients, or updates the weights.

    `updates` counts the updates that the loop makes with an optimizer of the process. `is_left`
    marks a loop that was left early.
    """

    def __init__(self, step: TrainStep, micro_batches: MicroBatches, times: EpochTimes) -> None:
        self.step = step
        self.process = step.process
        self.state = step.state
        self.logged = step.logged
        self.micro_batches = micro_batches
        self.times = times
        self.updates = OwnUpdates(step.process.backward, "the loop")
        self.num_given = 0
        self.is_left = False

    def epoch(self, windows: Iterable[Window]) -> Iterator[Any]:
        """Yield the batches of windows, and end the step of each after its last batch.

        A loop that is left counts its step only if it has made the update.
        """
        for window in windows:
            self.step.begin(window)
            try:
                yield from self._batches(window)
            except GeneratorExit:
                self.is_left = True
                self.state.stop.ask("the loop was left", interrupts=True)
            self.step.take_back()
            if self.is_left and not self.updates.made:
                self.step.is_open = False
                break
            self.state.micro_step += len(window.batches)
            self._end_step(window)

    def backward(self, loss: Losses) -> None:
        """Add the gradients of one micro-batch, weighted as its window needs it."""
        self.num_given += 1
        self.process.backward(loss)

    def _batches(self, window: Window) -> Iterator[Any]:
        """Yield each micro-batch of the window, as handlers of `backward_begin` left it."""
        self.num_given = 0
        for _ in self.micro_batches.of(window):
            yield self.state.batch

    def _end_step(self, window: Window) -> None:
        """Make the update, unless the loop has made it; then count the step."""
        self.times.update_began = perf_counter()
        is_deferred = self.step.results.deferred is not None
        has_updated = self.updates.made
        loss = self._settle(window, is_deferred=is_deferred)
        if not has_updated:
            self._update()
        self.step.count(window)
        if loss is not None and not is_deferred:
            self.state.loss = loss

    def _update(self) -> None:
        try:
            self.step.update()
        except NonFiniteError:
            self.step.take_back()
            self.step.buffers.put_back()
            raise
        self.updates.made = 0

    def _settle(self, window: Window, *, is_deferred: bool) -> Any:
        """Settle an update that the loop has made; return the loss that it logged, if any.

        InputError when the loop has made neither an update nor the gradients for one.
        """
        mean = self.logged.means.pop("loss", None)
        loss = None
        if mean is not None:
            loss = (mean.total, mean.weight) if is_deferred else mean.value()
        num_batches = len(window.batches)
        if self.updates.made:
            self.updates.settle(self.state.step, num_batches, loss)
        else:
            self.updates.check_given(self.num_given, num_batches)
        return loss
