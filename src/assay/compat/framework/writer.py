"""SummaryWriter of `tensorboardX`, which writes a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.compat.framework.script_inputs import SavedFiles, config_of_script
from assay.compat.names import UnmappedNameError
from assay.plugins.tensorboard import TensorBoard
from assay.record.start import Run
from assay.script import start


class SummaryWriter:
    """Writer of a run: scalars go to its record, and with all else into event files.

    The run is called after `log_dir`, which gets a link to its event files, and ends with Python.
    Under `python -m assay.compat` the record has the config that the script reads (argparse,
    configparser, JSON) and the files that it saves with `torch.save`.
    Histograms, images and texts without a step are those of step 0. What says how event files are
    written (`flush_secs`, `walltime`, `bins`, `dataformats`) is taken and means nothing here.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "runs",
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
        *,
        logdir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.log_dir = Path(log_dir if logdir is None else logdir)
        self.run: Run = start(tag=f"{self.log_dir.name}{comment}", config=config_of_script())
        self.run.attach(SavedFiles(self.run))
        self._board = TensorBoard()
        self.run.attach(self._board)
        if self._board.folder is not None and self.run.folder is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            link = self.log_dir / self.run.folder.path.name
            link.symlink_to(self._board.folder.resolve(), target_is_directory=True)

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int = 0, walltime: Any = None
    ) -> None:
        """Record one value."""
        self.run.log({tag: float(scalar_value)}, global_step)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int = 0,
        walltime: Any = None,
    ) -> None:
        """Record several values under one name."""
        values = {f"{main_tag}/{tag}": float(value) for tag, value in tag_scalar_dict.items()}
        self.run.log(values, global_step)

    def add_histogram(
        self, tag: str, values: Any, global_step: int = 0, bins: Any = None, walltime: Any = None
    ) -> None:
        """Write the histogram of an array or tensor of any shape."""
        self._board.histogram(tag, values, global_step)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int = 0,
        walltime: Any = None,
        dataformats: str = "",
    ) -> None:
        """Write one image: height x width, with or without channels in front or behind."""
        self._board.image(tag, img_tensor, global_step)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int = 0,
        walltime: Any = None,
        dataformats: str = "",
    ) -> None:
        """Write a batch of images as a grid."""
        self._board.images(tag, img_tensor, global_step)

    def add_text(self, tag: str, text_string: str, global_step: int = 0) -> None:
        """Write a text."""
        self._board.text(tag, text_string, global_step)

    def add_figure(self, tag: str, figure: Any, global_step: int = 0) -> None:
        """Keep a figure of matplotlib as an image of the record."""
        self.run.figure(tag, figure, global_step)

    def add_hparams(
        self, hparam_dict: Mapping[str, Any], metric_dict: Mapping[str, Any], **named: Any
    ) -> None:
        """Record the metrics, and write the parameters as a text."""
        self.run.log({name: float(value) for name, value in metric_dict.items()}, 0)
        self._board.text("hparams", "\n".join(f"{k}: {v}" for k, v in hparam_dict.items()), 0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add_"):
            raise AttributeError(name)
        known = ", ".join(each for each in dir(SummaryWriter) if each.startswith("add_"))
        raise UnmappedNameError(
            f"`SummaryWriter.{name}` has nothing here that stands for it.",
            fix=f"There are: {known}.",
        )

    def add_graph(self, model: Any, input_to_model: Any = None) -> None:
        """Keep the modules of a model as a text, and in the record as an artifact."""
        self._board.text("graph", f"```\n{model}\n```", 0)
        self.run.artifact(f"{model}\n".encode(), "graph.txt")

    def flush(self) -> None:
        """Do nothing: whatever was recorded survives the end of the process."""

    def close(self) -> None:
        """End the run."""
        self.run.finish()
