"""Callbacks of thexp's trainer."""

from __future__ import annotations

import time

from assay.engine import LoggerCallback as EpochLines
from assay.engine import Trainer
from assay.record.logger import Logger


class BatchLines(EpochLines):
    """Prints the start, one line rewritten for each batch, and the time of each epoch with an ETA.

    Every line goes to the log of the run too.
    """

    def __init__(self, logger: Logger | None = None) -> None:
        self.logger = logger or Logger("thexp")
        self._epoch_began = 0.0
        self._seconds = 0.0
        self._epochs = 0

    def on_train_begin(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        state = trainer.engine.state
        name = getattr(trainer.params, "exp_name", "") or type(trainer).__name__
        self.logger.info(f"start {name}: {state.max_epochs} epochs on {trainer.engine.device}")

    def on_epoch_begin(self, trainer: Trainer) -> None:
        self._epoch_began = time.monotonic()

    def on_batch_end(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        state = trainer.engine.state
        place = f"epoch {state.epoch + 1}/{state.max_epochs}"
        batch = f"{state.epoch_step}/{state.epoch_length or '?'}"
        self.logger.inline(f"{place}  batch {batch}  {trainer.average}")

    def on_epoch_end(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        state = trainer.engine.state
        super().on_epoch_end(trainer)
        took = time.monotonic() - self._epoch_began
        self._seconds += took
        self._epochs += 1
        left = (state.max_epochs or state.epoch) - state.epoch
        eta = _clock(left * self._seconds / self._epochs)
        epochs = f"epoch {state.epoch}/{state.max_epochs}"
        self.logger.info(f"{epochs}  {took:.1f} s  ETA {eta}  {trainer.average}")


def _clock(seconds: float) -> str:
    """Return a time as people read it.

    >>> _clock(75)
    '0:01:15'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
