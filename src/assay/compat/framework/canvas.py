"""History and Canvas of `hiddenlayer`: curves and images of a run, drawn while it is written."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from assay.compat.framework.script_inputs import SavedFiles, config_of_script
from assay.core.terminal import in_notebook, visible
from assay.formats.json_codec import write_atomic
from assay.record.media import png, rgb_of
from assay.record.recorder import RunRecorder
from assay.record.start import Run
from assay.script import ScriptRun, start

PAGE = "canvas.html"
_PERIOD = 2
"""Seconds after which a browser loads the page of a run that goes on again."""


class History:
    """Values by name over (epoch, step), recorded in a run called `history`."""

    def __init__(self) -> None:
        self.run: Run = start(tag="history", config=config_of_script())
        self.run.attach(SavedFiles(self.run))
        self.step = 0
        self._values: dict[str, list[tuple[int, Any]]] = {}

    def log(self, step: int | Sequence[int], **values: Any) -> None:
        """Record values of a step; a tensor with more than one element is an image."""
        self.step += 1
        scalars = {name: value for name, value in values.items() if _is_scalar(value)}
        place = {"epoch": step[0], "batch": step[1]} if isinstance(step, Sequence) else {}
        numbers = {name: float(value) for name, value in scalars.items()}
        self.run.log({**place, **numbers}, self.step)
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
    """Drawing of a history, redrawn at the end of each block.

    In a notebook the drawing is one output. Elsewhere it is the page `canvas.html` of the record: a
    browser that has it open shows each new drawing until the run ends. The first block prints where
    the page is. `assay live` in a terminal and `assay ui` follow the run, too.
    """

    def __init__(self) -> None:
        self._drawn: dict[str, str] = {}
        self._handle: Any = None
        self._page: Path | None = None

    def __enter__(self) -> Canvas:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Show what was drawn, or update what is shown."""
        if not self._drawn:
            return
        if not in_notebook():
            self._write(is_live=True)
            return
        # Not a dependency: whoever has a kernel has it.
        shown: Any = import_module("IPython.display")
        page = shown.HTML(self.html())
        if self._handle is None:
            self._handle = shown.display(page, display_id=True)
        else:
            self._handle.update(page)

    def attach(self, recorder: RunRecorder) -> None:
        """Write the page into the record, and let it rest when the run ends."""
        self._page = recorder.folder.path / PAGE
        recorder.each_second(_nothing, at_end=lambda: self._write(is_live=False))

    def draw_plot(self, metric: HistorySeries) -> None:
        """Draw the curve of a recorded value."""
        self._begin(metric.run)
        if isinstance(metric.run, ScriptRun) and metric.run.folder is not None:
            self._drawn[metric.name] = metric.run.plot(metric.name).svg

    def draw_image(self, metric: HistorySeries) -> None:
        """Keep the newest value as an image of the run, and draw it."""
        self._begin(metric.run)
        step, image = metric.values[-1]
        metric.run.image(metric.name, image, step, stretch=True)
        data = base64.b64encode(png(rgb_of(image, stretch=True))).decode("ascii")
        title = escape(visible(f"{metric.name}  step {step}"))
        style = "image-rendering:pixelated;min-width:160px"
        self._drawn[metric.name] = (
            f'<figure><figcaption>{title}</figcaption><img alt="{title}" style="{style}"'
            f' src="data:image/png;base64,{data}"></figure>'
        )

    def html(self) -> str:
        """Return all drawings, one below the other, in the order in which they first came."""
        return "".join(f"<div>{each}</div>" for each in self._drawn.values())

    def _begin(self, run: Run) -> None:
        """Choose the place of the page at the first drawing, and print it."""
        if self._page is not None or run.folder is None or in_notebook():
            return
        run.attach(self)
        print(f"canvas: {(run.folder.path / PAGE).as_uri()}", file=sys.stderr)

    def _write(self, *, is_live: bool) -> None:
        if self._page is None:
            return
        again = f'<meta http-equiv="refresh" content="{_PERIOD}">' if is_live else ""
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}'
            f"<title>canvas</title></head><body>{self.html()}</body></html>"
        )
        write_atomic(self._page, page.encode("utf-8"))


def _nothing() -> None:
    """Do nothing each second: only the end of the run matters."""


def _is_scalar(value: Any) -> bool:
    count = getattr(value, "numel", None)
    return count() == 1 if callable(count) else getattr(value, "size", 1) == 1
