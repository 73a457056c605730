"""A training as a class that makes its own model, optimizer and loaders, with callbacks around
it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from assay.core.errors import InputError
from assay.core.event_log import Warned
from assay.core.events import Event, Handler
from assay.core.ports import NullRecorder, Recorder
from assay.engine.callbacks.evaluate import Evaluate
from assay.engine.loop.engine import Engine
from assay.engine.loop.state import State
from assay.engine.loop.styles.train_batch import Average
from assay.engine.metrics.metric import Metric


class Trainer:
    """Write `initial_trainer(params)`, which makes `model`, `optim` and the loaders, and
    `train_batch(...)`.

    `params.epoch` says how many epochs there are. Under an engine of its own, `train()`; what
    `initial_callback` hooks listens to it. `recorder` and `average` are what the record of a run
    and the means of an epoch are kept with.
    """

    model: nn.Module
    optim: torch.optim.Optimizer
    metrics: Mapping[str, Metric] = {}
    recorder: Recorder = NullRecorder()
    average: Average | None = None
    logger = logging.getLogger("assay")

    def __init__(self, params: Any) -> None:
        self.params = params
        self.loaders: dict[str, Iterable[Any]] = {}
        self.callbacks: list[Callback] = []
        self.engine: Engine | None = None
        self._evaluations: dict[str, Evaluate] = {}

    def initial_trainer(self, params: Any) -> None:
        """Make the model, the optimizer and the loaders."""
        raise NotImplementedError

    def initial_callback(self) -> None:
        """Hook the callbacks: evaluation after every epoch, a test after every fifth, and lines
        about it."""
        EvalCallback(1, 5).hook(self)
        LoggerCallback().hook(self)

    def initial(self) -> None:
        """Callbacks first, then the trainer itself."""
        self.initial_callback()
        self.initial_trainer(self.params)

    def regist_databundler(
        self,
        train: Iterable[Any],
        *,
        eval: Iterable[Any] | None = None,
        test: Iterable[Any] | None = None,
    ) -> None:
        """Name the loaders; the engine moves what they give to the device."""
        given = {"train": train, "eval": eval, "test": test}
        self.loaders = {name: loader for name, loader in given.items() if loader is not None}

    def make_engine(self) -> Engine:
        """The engine of this training, with its callbacks."""
        if "train" not in self.loaders:
            raise InputError(
                f"{type(self).__name__} has no data to train on.",
                fix="Call self.regist_databundler(train=loader) in initial_trainer.",
            )
        self.engine = Engine(
            self,
            self.loaders["train"],
            epochs=self.params.epoch,
            seed=getattr(self.params, "seed", 0) or 0,
            device=getattr(self.params, "device", "cpu"),
            recorder=self.recorder,
        )
        for callback in self.callbacks:
            self.engine.bus.extend(callback.handlers())
        return self.engine

    def train(self) -> State:
        """Train all epochs, or those that are left."""
        if not self.loaders:
            self.initial()
        return (self.engine or self.make_engine()).run()

    def evaluate(self, split: str) -> dict[str, Any]:
        """Evaluate `eval` or `test`, once for each step; what is known of it by name: nothing
        without a loader."""
        assert self.engine is not None
        if split in self.loaders:
            if split not in self._evaluations:
                self._evaluations[split] = Evaluate({split: self.loaders[split]})
            self._evaluations[split].run(self.engine)
        metrics = self.engine.state.metrics
        return {name: value for name, value in metrics.items() if name.startswith(f"{split}/")}


class Callback:
    """Override what it is to be called for, each with the trainer. Of two the lower `priority` goes
    first.

    `hook` it to a trainer, `unhook` it again, also while the training goes on; while `enabled` is
    false it is silent.
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
        """Be called by this trainer."""
        self.trainer = trainer
        trainer.callbacks.append(self)
        if trainer.engine is not None:
            trainer.engine.bus.extend(self.handlers())

    def unhook(self) -> None:
        """Be called no more."""
        self.trainer.callbacks.remove(self)
        if self.trainer.engine is not None:
            for handler in self.handlers():
                self.trainer.engine.bus.remove(handler)

    def handlers(self) -> list[Handler]:
        """One for each method that there is."""
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
    """A method of a callback, as a handler calls it; equal to another one of the same."""

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
    """Evaluates every `eval_every` epochs and tests every `test_every`; both once after the last,
    whatever it is.

    A split without a loader is left out, and that is told once.
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
    """A line for each epoch with its means, and one for each evaluation."""

    def on_epoch_end(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        state = trainer.engine.state
        shown = trainer.average if trainer.average is not None else f"loss {state.loss:.4f}"
        trainer.logger.info(
            "epoch %s/%s  step %s  %s", state.epoch, state.max_epochs, state.step, shown
        )

    def on_eval_end(self, trainer: Trainer) -> None:
        self._tell(trainer)

    def on_test_end(self, trainer: Trainer) -> None:
        self._tell(trainer)

    def _tell(self, trainer: Trainer) -> None:
        assert trainer.engine is not None
        state = trainer.engine.state
        values = (
            f"{name} {value:.4f}"
            for name, value in state.metrics.items()
            if name.startswith(f"{state.split}/")
        )
        trainer.logger.info("%s after epoch %s  %s", state.split, state.epoch, "  ".join(values))
