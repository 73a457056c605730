"""Trainer of thexp: training as one class, with its record and its callbacks."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from assay.compat.fitting_call import call_fitting
from assay.compat.plain_state import PlainState
from assay.compat.recorded import add_checkpoints, train_recorded
from assay.compat.thexp.params import COUNTERS, PermissiveParams
from assay.core.errors import InputError, did_you_mean
from assay.core.events import Event, Handler
from assay.core.facts import Warned
from assay.core.ports import NullRecorder, Recorder
from assay.engine import Engine, Evaluate, State
from assay.engine.metrics.metric import Metric
from assay.plugins.tensorboard import TensorBoard
from assay.record.logger import Logger
from assay.record.meter import AvgMeter
from assay.record.start import Run
from assay.script import start
from assay.store.layout import make_project


class Trainer:
    """Training as one class: write `initial_trainer(params)` and `train_batch(...)`.

    `initial_trainer` sets `model` and `optim` and registers the loaders; `params.epoch` is the
    number of epochs. Then call `initial_exp(folder)` and `train()`. The record lies in the project
    of that folder: parameters, code, log, metrics, event files for TensorBoard, and a checkpoint
    after each epoch. Ctrl-C and SIGTERM finish the step, save a checkpoint and end the process;
    `assay resume` runs the script again, which resumes the run. `board` takes images, histograms
    and texts besides.

    Without `initial_exp` nothing is recorded but by a `recorder` that is set.
    """

    model: Any
    optim: Any
    metrics: Mapping[str, Metric] = {}
    recorder: Recorder = NullRecorder()
    run: Run | None = None
    board: TensorBoard | None = None

    def __init__(self, params: Any) -> None:
        self.params = params
        self.logger = Logger("thexp")
        self.average = AvgMeter()
        self.loaders: dict[str, Iterable[Any]] = {}
        self.callbacks: list[Callback] = []
        self.engine: Engine | None = None
        self._evaluations: dict[str, Evaluate] = {}

    def initial_trainer(self, params: Any) -> None:
        """Make the model, the optimizer and the loaders."""
        raise NotImplementedError

    def initial_callback(self) -> None:
        """Hook evaluation after each epoch, a test after each fifth, and the lines of the log."""
        EvalCallback(1, 5).hook(self)
        LoggerCallback().hook(self)

    def initial(self) -> None:
        """Call `initial_callback`, then `initial_trainer`."""
        self.initial_callback()
        self.initial_trainer(self.params)

    def regist_databundler(
        self,
        train: Iterable[Any],
        *,
        eval: Iterable[Any] | None = None,
        test: Iterable[Any] | None = None,
    ) -> None:
        """Set the loaders by split; the engine moves their batches to the device."""
        given = {"train": train, "eval": eval, "test": test}
        self.loaders = {name: loader for name, loader in given.items() if loader is not None}

    def make_engine(self) -> Engine:
        """Return the engine of this training, with its callbacks."""
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
        if isinstance(self.params, PermissiveParams):
            self.engine.keep(self.params)
            for event in (Event.EPOCH_BEGIN, Event.STEP_BEGIN):
                self.engine.bus.add(Handler(event=event, fn=self._count, priority=-1))
            self.engine.bus.add(Handler(event=Event.RUN_END, fn=self._count_end, priority=-1))
        for callback in self.callbacks:
            self.engine.bus.extend(callback.handlers())
        return self.engine

    def _count(self, state: State) -> None:
        """Set the counters of the parameters as `train_batch` gets them."""
        counts = {"eidx": state.epoch + 1, "idx": state.epoch_step, "global_step": state.step}
        self.params.load_state_dict(counts)

    def _count_end(self, state: State) -> None:
        self.params.load_state_dict({"global_step": state.step})

    def initial_exp(self, folder: str | os.PathLike[str]) -> None:
        """Begin the record in the project `folder`, which is made, then set up the trainer."""
        name = getattr(self.params, "exp_name", "") or type(self).__name__
        project = make_project(Path(folder))
        code = [Path(file).parent] if (file := _file_of(type(self))) else []
        self.run = start(
            tag=str(name),
            config=dict(self.params),
            project=project,
            code_dirs=code,
            resumable=True,
        )
        self.recorder = self.run
        self.initial()
        engine = self.make_engine()
        saver = add_checkpoints(engine, self.run)
        if saver is not None:
            self.board = TensorBoard()
            self.run.attach(self.board)
            engine.bus.extend(self.board.handlers())
            engine.resume(saver)  # a new record has no checkpoint

    def train(self) -> State:
        """Train all epochs, or those that are left; the record ends with it.

        Raises SystemExit with 130 or 143 after a signal, once the checkpoint is saved.
        """
        if self.run is None or self.engine is None:
            return self._train()
        try:
            return train_recorded(self.engine, self.run)
        finally:
            for callback in self.callbacks:
                if callback.enabled:
                    callback.on_record_end(self)

    def _train(self) -> State:
        if not self.loaders:
            self.initial()
        return (self.engine or self.make_engine()).run()

    def evaluate(self, split: str) -> dict[str, Any]:
        """Evaluate `eval` or `test` at this step; return its metrics, none without a loader."""
        assert self.engine is not None
        if split in self.loaders:
            if split not in self._evaluations:
                self._evaluations[split] = Evaluate({split: self.loaders[split]})
            self._evaluations[split].run(self.engine)
        metrics = self.engine.state.metrics
        return {name: value for name, value in metrics.items() if name.startswith(f"{split}/")}


class Callback(PlainState):
    """Base class of callbacks: write the methods of `MOMENTS`, which get the trainer.

    A method may take the trainer alone, or any of `trainer`, `params`, `meter` (the means of the
    epoch; of the split where the method is about one), `epoch` and `eidx` (from 1), `idx`,
    `global_step` and `logs` (the metrics). `hook` adds it to a trainer and `unhook` removes it,
    also during training. The lower `priority` is called first; while `enabled` is false nothing
    is called.
    """

    priority = 0
    enabled = True
    MOMENTS: ClassVar[Mapping[str, tuple[Event, str]]] = {
        "on_train_begin": (Event.RUN_BEGIN, ""),
        "on_train_end": (Event.RUN_END, ""),
        "on_epoch_begin": (Event.EPOCH_BEGIN, ""),
        "on_epoch_end": (Event.EPOCH_END, ""),
        **dict.fromkeys(
            ("on_batch_begin", "on_train_batch_begin", "on_iteration_begin"),
            (Event.STEP_BEGIN, ""),
        ),
        **dict.fromkeys(
            ("on_batch_end", "on_train_batch_end", "on_iteration_end"), (Event.STEP_END, "")
        ),
        "on_eval_begin": (Event.EVAL_BEGIN, "eval"),
        "on_eval_end": (Event.EVAL_END, "eval"),
        "on_test_begin": (Event.EVAL_BEGIN, "test"),
        "on_test_end": (Event.EVAL_END, "test"),
        "on_exception": (Event.EXCEPTION, ""),
    }
    """Method -> the event that calls it, and the split that it is about."""

    def hook(self, trainer: Trainer) -> None:
        """Let this trainer call it; warn of methods that sound like moments, and are none."""
        for name in dir(self):
            if name.startswith("on_") and name not in (*self.MOMENTS, "on_record_end"):
                near = did_you_mean(name, self.MOMENTS)
                trainer.logger.warning(f"{self}.{name} is no moment, and is not called.", near)
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

    def on_record_end(self, trainer: Trainer) -> None:
        """Do what needs the whole record, which has just ended; nothing here."""

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
        self.__self__ = callback  # whose state, if it has one, the checkpoints keep
        self.split = split

    def __call__(self, state: State) -> None:
        callback, name = self.key
        if callback.enabled and (not self.split or state.split == self.split):
            trainer = callback.trainer
            counts = {each: getattr(trainer.params, each, None) for each in COUNTERS}
            offered = {**counts, "trainer": trainer, "params": trainer.params}
            meter = _means_of(self.split, state) if self.split else trainer.average
            offered |= {"epoch": counts["eidx"], "meter": meter, "logs": state.metrics}
            call_fitting(getattr(callback, name), trainer, **offered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _means_of(split: str, state: State) -> AvgMeter:
    """Return the metrics of a split by their own names; those of before while it is evaluated."""
    of_split = f"{split}/"
    means = AvgMeter()
    means.update(
        {
            name.removeprefix(of_split): value
            for name, value in state.metrics.items()
            if name.startswith(of_split)
        }
    )
    return means


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
                if trainer.run is None:
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
        self.logger.info(f"{state.split} after epoch {state.epoch}", " ".join(values))


def _clock(seconds: float) -> str:
    """Return a time as h:mm:ss.

    >>> _clock(75)
    '0:01:15'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _file_of(kind: type) -> str:
    """Return the file of a class, "" for one that was typed in."""
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError):  # which of them depends on what torch has patched
        return ""
