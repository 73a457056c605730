"""`assay.Trainer`: a training as one class, with its record."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, cast

from assay.core.ports import Recorder
from assay.engine import Save, Saver
from assay.engine import Trainer as EngineTrainer
from assay.engine.state import State
from assay.record.meter import AvgMeter
from assay.record.start import Run, start
from assay.store.layout import make_project


class Trainer(EngineTrainer):
    """Write `initial_trainer(params)` and `train_batch(...)`; then `initial_exp(folder)` and `train()`.

    The record lies in the project of that folder: parameters, code, log, metrics, and a checkpoint after each epoch.
    """

    run: Run | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.average = AvgMeter()

    def initial_exp(self, folder: str | os.PathLike[str]) -> None:
        """Begin the record in the project `folder`, which is made; then the callbacks and the trainer itself."""
        name = getattr(self.params, "exp_name", "") or type(self).__name__
        project = make_project(Path(folder))
        code = Path(inspect.getfile(type(self))).parent
        self.run = start(tag=str(name), config=dict(self.params), project=project, code_dirs=[code])
        self.recorder = cast(Recorder, self.run)  # it never goes back to an earlier step
        self.initial()
        engine = self.make_engine()
        if self.run.folder is not None:
            engine.bus.extend(Save(Saver(self.run.folder.checkpoints)).handlers())

    def train(self) -> State:
        """Train all epochs, or those that are left; the record ends with it."""
        if self.run is None:
            return super().train()
        with self.run:
            return super().train()
