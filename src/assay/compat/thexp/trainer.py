"""Trainer of thexp: training as one class, with its record."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

from assay.compat.thexp.callbacks import BatchLines
from assay.core.signals import stopping
from assay.engine import EvalCallback, Save, State
from assay.engine import Saver as EngineSaver
from assay.engine import Trainer as EngineTrainer
from assay.plugins.tensorboard import TensorBoard
from assay.record.meter import AvgMeter
from assay.record.start import Run
from assay.script import start
from assay.store.layout import make_project


class RecordedTrainer(EngineTrainer):
    """Training as one class: write `initial_trainer(params)` and `train_batch(...)`.

    Then call `initial_exp(folder)` and `train()`. The record lies in the project of that folder:
    parameters, code, log, metrics, event files for TensorBoard, and a checkpoint after each epoch.
    Ctrl-C and SIGTERM finish the step, save a checkpoint and end the process. `board` takes images,
    histograms and texts besides.
    """

    run: Run | None = None
    board: TensorBoard | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.average = AvgMeter()

    def initial_callback(self) -> None:
        """Hook evaluation after each epoch, a test after each fifth, and the lines of the log."""
        EvalCallback(1, 5).hook(self)
        BatchLines().hook(self)

    def initial_exp(self, folder: str | os.PathLike[str]) -> None:
        """Begin the record in the project `folder`, which is made, then set up the trainer."""
        name = getattr(self.params, "exp_name", "") or type(self).__name__
        project = make_project(Path(folder))
        code = [Path(file).parent] if (file := _file_of(type(self))) else []
        self.run = start(tag=str(name), config=dict(self.params), project=project, code_dirs=code)
        self.recorder = self.run
        self.initial()
        engine = self.make_engine()
        if self.run.folder is not None:
            engine.bus.extend(Save(EngineSaver(self.run.folder.checkpoints)).handlers())
            self.board = TensorBoard()
            self.run.attach(self.board)
            engine.bus.extend(self.board.handlers())

    def train(self) -> State:
        """Train all epochs, or those that are left; the record ends with it.

        Raises SystemExit with 130 or 143 after a signal, once the checkpoint is saved.
        """
        if self.run is None or self.engine is None:
            return super().train()
        stop = self.engine.state.stop
        with self.run, stopping(stop, say=_say):
            state = super().train()
            if stop.interrupts:
                self.run.finish("stopped", stop.reason)
        if stop.interrupts and stop.signal:
            raise SystemExit(128 + stop.signal)
        return state


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _file_of(kind: type) -> str:
    """Return the file of a class, "" for one that was typed in."""
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError):  # which of them depends on what torch has patched
        return ""
