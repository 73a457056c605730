"""Class `assay.Trainer`: training and record in one.

Torch is imported when the class is asked for.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.plugins.tensorboard import TensorBoard
from assay.record.meter import AvgMeter
from assay.record.start import Run
from assay.script import start
from assay.store.layout import make_project

if TYPE_CHECKING:
    from assay.engine import Trainer as _Engine
    from assay.engine.loop.state import State
else:
    _Engine = object


class Recorded(_Engine):
    """Record of the run and means over an epoch, for the engine's `Trainer`."""

    run: Run | None = None
    board: TensorBoard | None = None

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.average = AvgMeter()

    def initial_exp(self, folder: str | os.PathLike[str]) -> None:
        """Begin the record in the project `folder`, which is made, then set up the trainer."""
        from assay.engine import Save, Saver

        name = getattr(self.params, "exp_name", "") or type(self).__name__
        project = make_project(Path(folder))
        code = [Path(file).parent] if (file := _file_of(type(self))) else []
        self.run = start(tag=str(name), config=dict(self.params), project=project, code_dirs=code)
        self.recorder = self.run
        self.initial()
        engine = self.make_engine()
        if self.run.folder is not None:
            engine.bus.extend(Save(Saver(self.run.folder.checkpoints)).handlers())
            self.board = TensorBoard()
            self.run.attach(self.board)
            engine.bus.extend(self.board.handlers())

    def train(self) -> State:
        """Train all epochs, or those that are left; the record ends with it."""
        if self.run is None:
            return super().train()
        with self.run:
            return super().train()


if TYPE_CHECKING:
    Trainer = Recorded


def __getattr__(name: str) -> Any:
    if name != "Trainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from assay.engine import Trainer as EngineTrainer

    doc = """Training as one class: write `initial_trainer(params)` and `train_batch(...)`.

    Then call `initial_exp(folder)` and `train()`. The record lies in the project of that folder:
    parameters, code, log, metrics, event files for TensorBoard, and a checkpoint after each epoch.
    `board` takes images, histograms and texts besides.
    """
    made = type(name, (Recorded, EngineTrainer), {"__module__": __name__, "__doc__": doc})
    globals()[name] = made
    return made


def _file_of(kind: type) -> str:
    """Return the file of a class, "" for one that was typed in."""
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError):  # which of them depends on what torch has patched
        return ""
