"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere, nothing when nobody looks."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from assay.core.events import Event, Handler
from assay.engine.engine import Engine
from assay.engine.when import every as each

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_REFRESH_S = 0.1


class Display:
    """Follows an engine. Lines are also logged, for `log.txt`.

    On a terminal there is a bar, drawn ten times a second at most, and a line for each epoch; elsewhere there is a line
    for each period `every`.
    """

    def __init__(
        self,
        *,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
        quiet: bool = False,
        every: str = "1 epoch",
        stream: TextIO | None = None,
    ) -> None:
        self.logger = logger
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self.is_live = not quiet and self.stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self.every = "1 epoch" if self.is_live else every
        self.bar: Progress | None = None
        self._task: TaskID | None = None
        self._due = 0
        self._drawn = (0.0, 0)
        self._begun = 0.0
        self._told = 0.0
        self._evaluated_at: int | None = None

    def handlers(self) -> list[Handler]:
        pairs: list[tuple[Event, Callable[..., None]]] = [
            (Event.RUN_BEGIN, self.begin),
            (Event.EPOCH_BEGIN, self.begin_epoch),
            (Event.EVAL_END, self.end_evaluation),
            (Event.RUN_END, self.end),
        ]
        out = [Handler(event=event, fn=fn, priority=100, name="Display") for event, fn in pairs]
        out.append(Handler(event=Event.EXCEPTION, fn=self.close, priority=-100, name="Display"))
        periodic = each(self.every, self.tell, priority=100, name="Display")
        if periodic is not None:
            out.append(periodic)
        if self.is_live:
            out.append(Handler(event=Event.STEP_END, fn=self.step, when=self, priority=100, name="Display"))
        return out

    def next(self, count: int) -> int:
        """When the bar is drawn again: a step that should come about a tenth of a second later."""
        return max(count, self._due)

    def begin(self, engine: Engine) -> None:
        self._begun = self._told = time.perf_counter()
        if not self.is_live:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),  # the only one that gives way where it is narrow
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=Console(file=self.stream),
            auto_refresh=False,
            transient=True,
        )
        state = engine.state
        self._task = self.bar.add_task(self._title(engine), total=state.max_steps, completed=state.step, loss="-")
        self.bar.start()

    def begin_epoch(self, engine: Engine) -> None:
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, description=self._title(engine))

    def step(self, engine: Engine) -> None:
        state, now = engine.state, time.perf_counter()
        if state.step < self._due:  # `next` was asked before the last drawing said when the next one is due
            return
        since, step = self._drawn
        rate = (state.step - step) / max(now - since, 1e-9)
        self._due = state.step + max(1, int(rate * _REFRESH_S)) if since else state.step + 1
        self._drawn = (now, state.step)
        self._draw(engine)

    def end_evaluation(self, engine: Engine) -> None:
        self._evaluated_at = engine.state.step

    def tell(self, engine: Engine) -> None:
        """A line about the run so far; with metrics if they are of this step, and the seconds since the line before."""
        state, now = engine.state, time.perf_counter()
        begun = state.epoch if state.epoch_step == 0 else state.epoch + 1
        of = f"/{state.max_epochs}" if state.max_epochs else ""
        line = f"epoch {begun:>2}{of}  step {state.step:>5}  loss {state.loss:.4f}"
        metrics = _metrics(state.metrics) if self._evaluated_at == state.step else ""
        self._draw(engine)
        self.say(f"{line}{metrics}  {now - self._told:.1f} s")
        self._told = now

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

    def _draw(self, engine: Engine) -> None:
        state = engine.state
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, completed=state.step, loss=f"{state.loss:.4f}", refresh=True)

    def _title(self, engine: Engine) -> str:
        state = engine.state
        return f"epoch {state.epoch + 1}/{state.max_epochs}" if state.max_epochs else f"epoch {state.epoch + 1}"


def _metrics(metrics: Mapping[str, Any]) -> str:
    return "".join(f"  {name} {value:.4f}" for name, value in metrics.items())
