"""Training by the user's own loop, `for batch in engine`."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from assay.engine.data.source import Window
from assay.engine.loop.step import TrainLoop
from assay.engine.loop.styles.own_updates import OwnUpdates
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.losses import Losses


class HandLoop:
    """Hands out the micro-batches of a run; user code computes gradients, or updates the weights.

    `updates` counts the updates that the code makes with an optimizer of the process. `is_left`
    marks a loop that was left early.
    """

    def __init__(self, loop: TrainLoop) -> None:
        self.loop = loop
        self.updates = OwnUpdates(loop.process.backward, "the loop")
        self.num_given = 0
        self.is_left = False

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the run, and end the step of each window after its last batch.

        A loop that is left counts its step only if it has made the update.
        """
        loop, state = self.loop, self.loop.state
        for window in loop.windows():
            loop.begin_step(window)
            try:
                yield from self._batches_of(window)
            except GeneratorExit:
                self.is_left = True
                state.stop.ask("the loop was left", interrupts=True)
            loop.take_back()
            if self.is_left and not self.updates.made:
                loop.is_in_step = False
                return
            state.micro_step += len(window.batches)
            self._end_step(window)

    def backward(self, loss: Losses) -> None:
        """Add the gradients of one micro-batch, weighted as its window needs it."""
        self.num_given += 1
        self.loop.process.backward(loss)

    def _batches_of(self, window: Window) -> Iterator[Any]:
        """Yield each micro-batch of the window, as handlers of `backward_begin` left it."""
        self.num_given = 0
        for _ in self.loop.micro_batches(window):
            yield self.loop.state.batch

    def _end_step(self, window: Window) -> None:
        """Make the update, unless the loop has made it; then count the step."""
        loop = self.loop
        loop.times.update_began = perf_counter()
        is_deferred = loop.results.deferred is not None
        has_updated = self.updates.made
        loss = self._settle(window, is_deferred=is_deferred)
        if not has_updated:
            self._update()
        loop.count_step(window)
        if loss is not None and not is_deferred:
            loop.state.loss = loss

    def _update(self) -> None:
        try:
            self.loop.update()
        except NonFiniteError:
            self.loop.take_back()
            self.loop.buffers.put_back()
            raise
        self.updates.made = 0

    def _settle(self, window: Window, *, is_deferred: bool) -> Any:
        """Settle an update that the loop has made; return the loss that it logged, if any.

        InputError when the loop has made neither an update nor the gradients for one.
        """
        mean = self.loop.logged.means.pop("loss", None)
        loss = None
        if mean is not None:
            loss = (mean.total, mean.weight) if is_deferred else mean.value()
        num_batches = len(window.batches)
        if self.updates.made:
            self.updates.settle(self.loop.state.step, num_batches, loss)
        else:
            self.updates.check_given(self.num_given, num_batches)
        return loss
