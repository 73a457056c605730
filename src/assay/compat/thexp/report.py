"""Reporter of thexp: the report of an experiment in the folder of its record."""

from __future__ import annotations

from pathlib import Path

from assay.compat.thexp.trainer import Callback, Trainer
from assay.core.errors import InputError
from assay.plugins import auto_report
from assay.query.run import RunView
from assay.report.document import TEXT


class Reporter:
    """Writer of `report/report.md` in the folder of a run, with a page and pictures beside it."""

    def __init__(self, view: RunView) -> None:
        self.view = view

    def write(self) -> Path:
        """Write the report and return the Markdown file."""
        auto_report.AutoReport().record_end(self.view.path)
        return self.view.path / auto_report.FOLDER / TEXT


class ReportCallback(Callback):
    """`AutoReport` of thexp: it writes the report of a recorded training once that has ended."""

    def on_train_begin(self, trainer: Trainer) -> None:
        if trainer.run is None:
            raise InputError(
                "AutoReport needs a record.", fix="Call initial_exp(folder) before train()."
            )

    def on_record_end(self, trainer: Trainer) -> None:
        if trainer.run is not None and trainer.run.folder is not None:
            path = Reporter(RunView(trainer.run.folder)).write()
            trainer.logger.info("report %s", path)
