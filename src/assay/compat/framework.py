"""Names of a text of 2021: SummaryWriter of `tensorboardX`, History and Canvas of `hiddenlayer`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from assay.config.older_systems import OlderName
from assay.plugins.tensorboard import TensorBoard
from assay.record.start import Run
from assay.script import start

__all__ = ["NAMES", "Canvas", "History", "SummaryWriter"]

NAMES: Mapping[str, OlderName] = {
    "tensorboardX.SummaryWriter": OlderName(
        target="assay.compat.framework.SummaryWriter",
        instead="`run = assay.start()`, `run.log`, and `assay.TensorBoard` for event files",
    ),
    "hiddenlayer.History": OlderName(
        target="assay.compat.framework.History", instead="`run.log({...}, step)`"
    ),
    "hiddenlayer.Canvas": OlderName(
        target="assay.compat.framework.Canvas", instead="`assay live last`, and `assay ui`"
    ),
}
"""Names of both packages."""


class SummaryWriter:
    """Writer of a run: scalars go to its record, and with all else into event files.

    The run is called after `log_dir`, which gets a link to its event files, and ends with Python.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "runs", comment: str = "") -> None:
        self.log_dir = Path(log_dir)
        self.run: Run = start(tag=f"{self.log_dir.name}{comment}")
        self._board = TensorBoard()
        self.run.attach(self._board)
        if self._board.folder is not None and self.run.folder is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            link = self.log_dir / self.run.folder.path.name
            link.symlink_to(self._board.folder.resolve(), target_is_directory=True)

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int = 0) -> None:
        """Record one value."""
        self.run.log({tag: float(scalar_value)}, global_step)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int = 0
    ) -> None:
        """Record several values under one name."""
        values = {f"{main_tag}/{tag}": float(value) for tag, value in tag_scalar_dict.items()}
        self.run.log(values, global_step)

    def add_histogram(self, tag: str, values: Any, global_step: int = 0) -> None:
        """Write the histogram of an array or tensor of any shape."""
        self._board.histogram(tag, values, global_step)

    def add_image(self, tag: str, img_tensor: Any, global_step: int = 0) -> None:
        """Write one image: height x width, with or without channels in front or behind."""
        self._board.image(tag, img_tensor, global_step)

    def add_images(self, tag: str, img_tensor: Any, global_step: int = 0) -> None:
        """Write a batch of images as a grid."""
        self._board.images(tag, img_tensor, global_step)

    def add_text(self, tag: str, text_string: str, global_step: int = 0) -> None:
        """Write a text."""
        self._board.text(tag, text_string, global_step)

    def add_graph(self, model: Any, input_to_model: Any = None) -> None:
        """Keep the modules of a model as a text, and in the record as an artifact."""
        self._board.text("graph", f"```\n{model}\n```", 0)
        self.run.artifact(f"{model}\n".encode(), "graph.txt")

    def flush(self) -> None:
        """Do nothing: whatever was recorded survives the end of the process."""

    def close(self) -> None:
        """End the run."""
        self.run.finish()


class History:
    """Values by name over (epoch, step), recorded in a run called `history`."""

    def __init__(self) -> None:
        self.run: Run = start(tag="history")
        self.step = 0
        self._values: dict[str, list[tuple[int, Any]]] = {}

    def log(self, step: int | Sequence[int], **values: Any) -> None:
        """Record values of a step; a tensor with more than one element is an image."""
        self.step += 1
        scalars = {name: value for name, value in values.items() if _is_scalar(value)}
        place = {"epoch": step[0], "batch": step[1]} if isinstance(step, Sequence) else {}
        self.run.log({**place, **{name: float(each) for name, each in scalars.items()}}, self.step)
        for name, value in values.items():
            kept = float(value) if name in scalars else value
            self._values.setdefault(name, []).append((self.step, kept))

    def __getitem__(self, name: str) -> HistorySeries:
        """Return the values of a name, for a canvas to draw."""
        return HistorySeries(run=self.run, name=name, values=self._values[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySeries:
    """Values of one name by step, and the run that records them."""

    run: Run
    name: str
    values: Sequence[tuple[int, Any]]


class Canvas:
    """Drawing of a history: images go into its record, where `assay live` and `assay ui` draw.

    Plots need nothing: the curves of a record are drawn while it is written.
    """

    def __enter__(self) -> Canvas:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: every drawing is in the record already."""

    def draw_plot(self, metric: HistorySeries) -> None:
        """Do nothing: the curve of a recorded value is drawn by `assay live`."""

    def draw_image(self, metric: HistorySeries) -> None:
        """Keep the newest value as an image of the run."""
        step, image = metric.values[-1]
        metric.run.image(metric.name, image, step, stretch=True)


def _is_scalar(value: Any) -> bool:
    count = getattr(value, "numel", None)
    return count() == 1 if callable(count) else getattr(value, "size", 1) == 1
