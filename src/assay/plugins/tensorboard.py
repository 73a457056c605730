"""The plugin that writes a run for TensorBoard, beside its own record."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.interop.event_file import EventFile
from assay.record.media import grid, histogram_of, png
from assay.record.recorder import RunRecorder

if TYPE_CHECKING:
    from assay.engine import Engine

FOLDER = "board"


class TensorBoard:
    """Plugin that writes event files to `board/` of the run; without a record it does nothing.

    `scalars`: patterns of the metrics that go in; `every`: only steps that it divides; `by`: what
    their x axis is. `parameters`: how often a histogram of each parameter is written, and of its
    gradient where it has one. In code, `image`, `images`, `histogram` and `text` add more.
    """

    def __init__(
        self,
        scalars: Sequence[str] = ("*",),
        every: int = 1,
        by: Literal["step", "epoch"] = "step",
        parameters: str = "never",
    ) -> None:
        if every < 1:
            raise InputError(
                f"TensorBoard: every = {every} is no number of steps.", fix="every = 1 writes all."
            )
        if by not in ("step", "epoch"):
            raise InputError(
                f'TensorBoard: by = "{by}" is no axis.', fix='Write by = "step" or by = "epoch".'
            )
        self.scalars = tuple(scalars)
        self.every = every
        self.by = by
        self.parameters = parameters
        self._file: EventFile | None = None
        self._waiting: deque[tuple[float, int, list[tuple[str, Any]]]] = deque()
        self._is_chosen: dict[str, bool] = {}
        self._epoch = 0

    def __enter__(self) -> Self:
        from assay.build import current

        recorder = current().try_get("recorder")
        if isinstance(recorder, RunRecorder):
            self.attach(recorder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def attach(self, recorder: RunRecorder) -> None:
        """Take what `recorder` logs from now on."""
        self._file = EventFile(recorder.folder.path / FOLDER)
        recorder.listen(self._take)
        recorder.each_second(self._write, at_end=self.close)

    @property
    def folder(self) -> Path | None:
        return None if self._file is None else self._file.path.parent

    def handlers(self) -> list[Handler]:
        from assay.engine.loop.bus import every

        # First of all at the end of an epoch: what is evaluated there belongs to the epochs that
        # are completed.
        listed = [
            Handler(event=event, fn=self._count_epoch, priority=-1000, name="TensorBoard")
            for event in (Event.EPOCH_BEGIN, Event.EPOCH_END)
        ]
        written = every(self.parameters, self._write_parameters, priority=80, name="TensorBoard")
        return listed + ([written] if written is not None else [])

    def image(self, tag: str, image: Any, step: int) -> None:
        """Write one image: height x width, with or without channels in front or behind."""
        self.images(tag, [image], step, per_row=1, gap=0)

    def images(self, tag: str, images: Any, step: int, *, per_row: int = 12, gap: int = 2) -> None:
        """Write a batch of images as a grid."""
        if self._file is not None:
            whole = grid(images, per_row=per_row, gap=gap)
            self._file.image(tag, png(whole), whole.shape[1], whole.shape[0], step)

    def histogram(self, tag: str, values: Any, step: int) -> None:
        if self._file is not None:
            found = histogram_of(values)
            self._file.histogram(
                tag, found.edges, found.counts, step, total=found.total, squares=found.squares
            )

    def text(self, tag: str, text: str, step: int) -> None:
        if self._file is not None:
            self._file.text(tag, text, step)

    def close(self) -> None:
        if self._file is not None:
            self._write()
            self._file.close()
            self._file = None

    def _take(self, values: Mapping[str, float], step: int) -> None:
        """Queue the values in the training's thread; the background encodes them."""
        if step % self.every == 0:
            at = step if self.by == "step" else self._epoch
            self._waiting.append((time.time(), at, list(values.items())))

    def _write(self) -> None:
        file = self._file
        while self._waiting and file is not None:
            at_s, step, values = self._waiting.popleft()
            chosen = [(name, float(value)) for name, value in values if self._has(name)]
            if chosen:
                file.scalars(chosen, step, at_s)
        if file is not None:
            file.flush()

    def _has(self, name: str) -> bool:
        known = self._is_chosen.get(name)
        if known is None:
            known = self._is_chosen[name] = any(
                fnmatchcase(name, pattern) for pattern in self.scalars
            )
        return known

    def _count_epoch(self, engine: Engine) -> None:
        self._epoch = engine.state.epoch

    def _write_parameters(self, engine: Engine) -> None:
        at = engine.state.step if self.by == "step" else engine.state.epoch
        for name, parameter in engine.process.model.named_parameters():
            self.histogram(f"parameters/{name}", parameter, at)
            if parameter.grad is not None:
                self.histogram(f"gradients/{name}", parameter.grad, at)
