"""Trainer of thexp: training as one class, with its record."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assay.compat.thexp.callbacks import Callback, EvalCallback, LoggerCallback
from assay.core.errors import InputError
from assay.core.ports import NullRecorder, Recorder
from assay.core.signals import stopping
from assay.engine import Engine, Evaluate, Save, Saver, State
from assay.engine.metrics.metric import Metric
from assay.plugins.tensorboard import TensorBoard
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
    logger = logging.getLogger("assay")

    def __init__(self, params: Any) -> None:
        self.params = params
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
        for callback in self.callbacks:
            self.engine.bus.extend(callback.handlers())
        return self.engine

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
        if self.run.folder is not None:
            saver = Saver(self.run.folder.checkpoints)
            engine.bus.extend(Save(saver).handlers())
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
        stop = self.engine.state.stop
        with self.run, stopping(stop, say=_say):
            state = self._train()
            if stop.interrupts:
                self.run.finish("stopped", stop.reason)
        if stop.interrupts and stop.signal:
            raise SystemExit(128 + stop.signal)
        return state

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


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _file_of(kind: type) -> str:
    """Return the file of a class, "" for one that was typed in."""
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError):  # which of them depends on what torch has patched
        return ""
