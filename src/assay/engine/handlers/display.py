"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere, nothing when nobody looks."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from assay.core.events import Event, Handler
from assay.engine.engine import Engine

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REFRESH_S = 0.1


class Display:
    """Follows an engine. The bar is drawn ten times a second at most; lines are also logged, for `log.txt`."""

    def __init__(
        self,
        *,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self.logger = logger
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self.bar: Progress | None = None
        self._task: TaskID | None = None
        self._due = 0
        self._drawn = (0.0, 0)
        self._begun = 0.0
        self._epoch_begun = 0.0

    def handlers(self) -> list[Handler]:
        pairs: list[tuple[Event, Callable[..., None]]] = [
            (Event.RUN_BEGIN, self.begin),
            (Event.EPOCH_BEGIN, self.begin_epoch),
            (Event.EPOCH_END, self.end_epoch),
            (Event.RUN_END, self.end),
            (Event.EXCEPTION, self.close),
        ]
        out = [Handler(event=event, fn=fn, priority=100, name="Display") for event, fn in pairs]
        if not self.quiet and self.stream.isatty():
            out.append(Handler(event=Event.STEP_END, fn=self.step, when=self, priority=100, name="Display"))
        return out

    def next(self, count: int) -> int:
        """When the bar is drawn again: a step that should come about a tenth of a second later."""
        return max(count, self._due)

    def begin(self, engine: Engine) -> None:
        self._begun = self._epoch_begun = time.perf_counter()
        if self.quiet or not self.stream.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(compact=True),
            console=Console(file=self.stream),
            auto_refresh=False,
            transient=True,
        )
        state = engine.state
        self._task = self.bar.add_task(self._title(engine), total=state.max_steps, completed=state.step, loss="-")
        self.bar.start()

    def begin_epoch(self, engine: Engine) -> None:
        self._epoch_begun = time.perf_counter()
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, description=self._title(engine))

    def step(self, engine: Engine) -> None:
        state, now = engine.state, time.perf_counter()
        since, step = self._drawn
        rate = (state.step - step) / max(now - since, 1e-9)
        self._due = state.step + max(1, int(rate * _REFRESH_S)) if since else state.step + 1
        self._drawn = (now, state.step)
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, completed=state.step, loss=f"{state.loss:.4f}", refresh=True)

    def end_epoch(self, engine: Engine) -> None:
        state = engine.state
        of = f"/{state.max_epochs}" if state.max_epochs else ""
        seconds = time.perf_counter() - self._epoch_begun
        line = f"epoch {state.epoch:>2}{of}  step {state.step:>5}  loss {state.loss:.4f}"
        self.say(f"{line}{_metrics(state.metrics)}  {seconds:.1f} s")

    def end(self, engine: Engine) -> None:
        self.close()
        state = engine.state
        share = " ".join(f"{name} {value:.1f}s" for name, value in engine.seconds.items() if value >= 0.05)
        self.logger.info("%d steps in %.1f s (%s)", state.step, time.perf_counter() - self._begun, share)

    def say(self, line: str) -> None:
        """One line for the person and for the log."""
        self.logger.info(line)
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, file=self.stream, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _title(self, engine: Engine) -> str:
        state = engine.state
        return f"epoch {state.epoch + 1}/{state.max_epochs}" if state.max_epochs else f"epoch {state.epoch + 1}"


def _metrics(metrics: Mapping[str, Any]) -> str:
    return "".join(f"  {name} {value:.4f}" for name, value in metrics.items())
