"""History and Canvas of `hiddenlayer`: curves and images of a run, drawn while it is written."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Any

from assay.core.terminal import in_notebook, visible
from assay.record.media import picture, png
from assay.record.start import Run
from assay.script import ScriptRun, start


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
    """Drawing of a history. In a notebook it is one output, redrawn at the end of each block.

    Elsewhere the record is what is drawn: `assay live` in a terminal and `assay ui` in a browser
    follow it while it is written, and an image is kept there in any case.
    """

    def __init__(self) -> None:
        self._drawn: dict[str, str] = {}
        self._handle: Any = None

    def __enter__(self) -> Canvas:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Show what was drawn, or update what is shown, in a notebook."""
        if not (self._drawn and in_notebook()):
            return
        # Not a dependency: whoever has a kernel has it.
        shown: Any = import_module("IPython.display")
        page = shown.HTML(self.html())
        if self._handle is None:
            self._handle = shown.display(page, display_id=True)
        else:
            self._handle.update(page)

    def draw_plot(self, metric: HistorySeries) -> None:
        """Draw the curve of a recorded value."""
        if isinstance(metric.run, ScriptRun) and in_notebook():
            self._drawn[metric.name] = metric.run.plot(metric.name).svg

    def draw_image(self, metric: HistorySeries) -> None:
        """Keep the newest value as an image of the run, and draw it."""
        step, image = metric.values[-1]
        metric.run.image(metric.name, image, step, stretch=True)
        if in_notebook():
            data = base64.b64encode(png(picture(image, stretch=True))).decode("ascii")
            title = escape(visible(f"{metric.name}  step {step}"))
            style = "image-rendering:pixelated;min-width:160px"
            self._drawn[metric.name] = (
                f'<figure><figcaption>{title}</figcaption><img style="{style}"'
                f' src="data:image/png;base64,{data}"></figure>'
            )

    def html(self) -> str:
        """Return all drawings, one below the other, in the order in which they first came."""
        return "".join(f"<div>{each}</div>" for each in self._drawn.values())


def _is_scalar(value: Any) -> bool:
    count = getattr(value, "numel", None)
    return count() == 1 if callable(count) else getattr(value, "size", 1) == 1
