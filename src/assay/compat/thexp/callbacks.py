"""Callbacks of thexp's trainer: subclass `Callback`, or hook one of those here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from assay.core.errors import InputError
from assay.core.event_log import Warned
from assay.core.events import Event, Handler
from assay.engine import State
from assay.record.logger import Logger

if TYPE_CHECKING:
    from assay.compat.thexp.trainer import Trainer


class Callback:
    """Base class of callbacks: override the methods of `MOMENTS`, which get the trainer.

    `hook` adds it to a trainer and `unhook` removes it, also during training. The lower `priority`
    is called first; while `enabled` is false nothing is called.
    """

    priority = 0
    enabled = True
    MOMENTS: ClassVar[Mapping[str, tuple[Event, str]]] = {
        "on_train_begin": (Event.RUN_BEGIN, ""),
        "on_train_end": (Event.RUN_END, ""),
        "on_epoch_begin": (Event.EPOCH_BEGIN, ""),
        "on_epoch_end": (Event.EPOCH_END, ""),
        "on_batch_begin": (Event.STEP_BEGIN, ""),
        "on_batch_end": (Event.STEP_END, ""),
        "on_eval_begin": (Event.EVAL_BEGIN, "eval"),
        "on_eval_end": (Event.EVAL_END, "eval"),
        "on_test_begin": (Event.EVAL_BEGIN, "test"),
        "on_test_end": (Event.EVAL_END, "test"),
        "on_exception": (Event.EXCEPTION, ""),
    }
    """Method -> the event that calls it, and the split that it is about."""

    def hook(self, trainer: Trainer) -> None:
        """Let this trainer call it."""
        self.trainer = trainer
        trainer.callbacks.append(self)
        if trainer.engine is not None:
            trainer.engine.bus.extend(self.handlers())

    def unhook(self) -> None:
        """End the calls."""
        self.trainer.callbacks.remove(self)
        if self.trainer.engine is not None:
            for handler in self.handlers():
                self.trainer.engine.bus.remove(handler)

    def handlers(self) -> list[Handler]:
        """Return a handler for each method of `MOMENTS` that the class has."""
        return [
            Handler(
                event=event,
                fn=_Call(self, name, split),
                priority=self.priority,
                name=f"{self}.{name}",
            )
            for name, (event, split) in self.MOMENTS.items()
            if hasattr(self, name)
        ]

    def __str__(self) -> str:
        return type(self).__name__


class _Call:
    """Method of a callback as a handler calls it; equal to another one of the same method."""

    def __init__(self, callback: Callback, name: str, split: str) -> None:
        self.key = callback, name
        self.split = split

    def __call__(self, state: State) -> None:
        callback, name = self.key
        if callback.enabled and (not self.split or state.split == self.split):
            getattr(callback, name)(callback.trainer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class EvalCallback(Callback):
    """Callback that evaluates every `eval_every` epochs and tests every `test_every`.

    Both happen after the last epoch too. A split without a loader is left out, with one warning.
    """

    def __init__(self, eval_every: int = 1, test_every: int = 5) -> None:
        for name, value in {"eval_every": eval_every, "test_every": test_every}.items():
            if value < 1:
                raise InputError(f"EvalCallback: {name} is {value}; it must be at least 1.")
        self.every = {"eval": eval_every, "test": test_every}

    def on_train_begin(self, trainer: Trainer) -> None:
        for split in self.every:
            if split not in trainer.loaders:
                message = f"There is no loader for {split}: it is left out."
                trainer.logger.warning(message)
                trainer.recorder.tell(Warned(message=message))

    def on_epoch_end(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        for split, every in self.every.items():
            if trainer.engine.state.epoch % every == 0:
                trainer.evaluate(split)

    def on_train_end(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        if not trainer.engine.state.stop.interrupts:
            for split in self.every:
                trainer.evaluate(split)


class LoggerCallback(Callback):
    """Callback that prints the start, a line rewritten for each batch, and the time of each epoch.

    The line of an epoch has its means and an ETA; each evaluation has a line too. All of them but
    those of batches go to the log of the run.
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
        trainer.logger.info(
            "epoch %s/%s  step %s  %s", state.epoch, state.max_epochs, state.step, trainer.average
        )
        took = time.monotonic() - self._epoch_began
        self._seconds += took
        self._epochs += 1
        left = (state.max_epochs or state.epoch) - state.epoch
        eta = _clock(left * self._seconds / self._epochs)
        epochs = f"epoch {state.epoch}/{state.max_epochs}"
        self.logger.info(f"{epochs}  {took:.1f} s  ETA {eta}  {trainer.average}")

    def on_eval_end(self, trainer: Trainer) -> None:
        self._log_metrics(trainer)

    def on_test_end(self, trainer: Trainer) -> None:
        self._log_metrics(trainer)

    def _log_metrics(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        state = trainer.engine.state
        values = (
            f"{name} {value:.4f}"
            for name, value in state.metrics.items()
            if name.startswith(f"{state.split}/")
        )
        trainer.logger.info("%s after epoch %s  %s", state.split, state.epoch, "  ".join(values))


def _clock(seconds: float) -> str:
    """Return a time as h:mm:ss.

    >>> _clock(75)
    '0:01:15'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
