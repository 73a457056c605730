"""Training of a window by the user's own loop, `for batch in engine`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from assay.engine.data.source import Window
from assay.engine.loop.process import Process
from assay.engine.loop.styles.own_updates import OwnUpdates
from assay.engine.loop.windows import MicroBatches
from assay.engine.metrics.logged_means import LoggedMeans
from assay.engine.optim.losses import Losses


class HandTrainer:
    """Hands out the micro-batches of a window; the loop computes gradients, or updates the weights.

    `updates` counts the updates that the loop makes with an optimizer of the process. `is_left`
    marks a loop that was left early.
    """

    def __init__(self, process: Process, micro_batches: MicroBatches, logged: LoggedMeans) -> None:
        self.process = process
        self.micro_batches = micro_batches
        self.logged = logged
        self.updates = OwnUpdates(process.backward, "the loop")
        self.num_given = 0
        self.is_left = False

    def batches(self, window: Window) -> Iterator[Any]:
        """Yield each micro-batch of the window, as handlers of `backward_begin` left it."""
        self.num_given = 0
        for _ in self.micro_batches.of(window):
            yield self.micro_batches.state.batch

    def backward(self, loss: Losses) -> None:
        """Add the gradients of one micro-batch, weighted as its window needs it."""
        self.num_given += 1
        self.process.backward(loss)

    def settle(self, window: Window, *, is_deferred: bool) -> Any:
        """Settle an update that the loop has made; return the loss that it logged, if any.

        InputError when the loop has made neither an update nor the gradients for one.
        """
        mean, loss = self.logged.means.pop("loss", None), None
        if mean is not None:
            loss = (mean.total, mean.weight) if is_deferred else mean.value()
        num_batches = len(window.batches)
        if self.updates.made:
            self.updates.settle(self.micro_batches.state.step, num_batches, loss)
        else:
            self.updates.check_given(self.num_given, num_batches)
        return loss
