"""Display of a run: bars on a terminal, plain lines elsewhere, nothing when nobody looks."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from assay.core.events import Event, EveryShare, Handler
from assay.core.formatting import duration
from assay.core.schema import parse_period
from assay.core.terminal import fold, in_notebook, visible
from assay.engine.callbacks.ema import EMA
from assay.engine.data.loader import Loader
from assay.engine.loop.bounds import arithmetic
from assay.engine.loop.bus import every as each
from assay.engine.loop.engine import Engine
from assay.engine.loop.state import MeanLoss, State
from assay.engine.optim.groups import describe_groups

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


_ROOM = 4
"""Columns for ^C, twice."""
_NARROW = 60
"""Columns of a terminal below which a bar takes all of them."""

_REFRESH_S = 0.1
_SHARE = 0.004
"""The part of the time that drawing may take: where it is slow, or the machine busy, it is drawn
less often."""


class Display:
    """Follows an engine. Lines are also logged, for `log.txt`.

    On a terminal there is a bar, drawn ten times a second at most, below it another one while a
    split is evaluated, and a line for each epoch; elsewhere there is a line for each period
    `every`. `lengths` are the batches of each split where they are known; a bar without a length
    has no end.
    """

    def __init__(
        self,
        *,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
        quiet: bool = False,
        every: str = "1 epoch",
        stream: TextIO | None = None,
        lengths: Mapping[str, int | None] | None = None,
    ) -> None:
        self.logger = logger
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self.page = NotebookPage() if stream is None and not quiet and in_notebook() else None
        is_terminal = self.stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self.is_live = not quiet and (is_terminal or self.page is not None)
        self.every = "1 epoch" if self.is_live else every
        self.lengths = dict(lengths or {})
        self.bar: Progress | None = None
        self._terminal: Console | None = None
        self._closing = contextlib.ExitStack()
        self._task: TaskID | None = None
        self._inner: TaskID | None = None  # the bar of an evaluation
        self._due = 0
        self._drawn = (0.0, 0)
        self._wait_s = _REFRESH_S
        self._begun = (0.0, 0)
        self._since = ""
        self._told = 0.0
        self._told_at: int | None = None
        self._evaluated_at: int | None = None
        self._weights: list[str] = []  # "(averaged weights)" where those are evaluated

    def handlers(self) -> list[Handler]:
        pairs: list[tuple[Event, Callable[..., None]]] = [
            (Event.RUN_BEGIN, self.begin),
            (Event.EPOCH_BEGIN, self.begin_epoch),
            (Event.EVAL_END, self.end_evaluation),
            (Event.RUN_END, self.end),
        ]
        if self.is_live:
            pairs += [
                (Event.EVAL_BEGIN, self.begin_evaluation),
                (Event.EVAL_STEP_END, self.evaluation_step),
            ]
        out = [Handler(event=event, fn=fn, priority=100, name="Display") for event, fn in pairs]
        out.append(Handler(event=Event.EXCEPTION, fn=self.close, priority=-100, name="Display"))
        periodic = each(self.every, self.tell, priority=100, name="Display")
        if periodic is not None:
            out.append(periodic)
        if self.is_live:
            out.append(
                Handler(event=Event.STEP_END, fn=self.step, when=self, priority=100, name="Display")
            )
        return out

    def next(self, count: int) -> int:
        """When the bar is drawn again: a step that should come about a tenth of a second later."""
        return max(count, self._due)

    def begin(self, engine: Engine) -> None:
        engine.state.mean_loss = MeanLoss()
        self._weights = _averaged_weights(engine)
        self._told = time.perf_counter()
        self._begun = (self._told, engine.state.step)
        self._since = f" (after step {engine.state.step})" if engine.state.epoch_step else ""
        self._told_at = engine.state.step
        if not self.is_live or self.page is not None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        self._terminal = Console(file=self.stream)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),  # the only one that gives way where it is narrow
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[left]}", style="cyan", table_column=Column(no_wrap=True)),
            console=Console(file=self.stream),  # of a width that `_leave_room` says
            auto_refresh=False,
            transient=True,
            # What is printed goes above the bar, but only if it went to this terminal before.
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._leave_room()
        self._task = self.bar.add_task(
            _title(engine),
            total=engine.state.max_steps,
            completed=engine.state.step,
            loss="loss -",
            left="",
        )
        self.bar.start()
        self._closing.enter_context(_logs_above_the_bar())
        self._closing.enter_context(_debugger_without_bar(self.close))

    def begin_epoch(self, engine: Engine) -> None:
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, description=_title(engine), total=engine.state.max_steps)

    def step(self, engine: Engine) -> None:
        state = engine.state
        now = time.perf_counter()
        # `next` was called before the last drawing said when the next one is due.
        if state.step < self._due:
            return
        since, step = self._drawn
        # A clock that has gone back, as on a restored machine, says nothing about the speed.
        rate = (state.step - step) / (now - since) if now > since else 0.0
        self._draw(engine)
        self._wait_s = max(_REFRESH_S, (time.perf_counter() - now) / _SHARE)
        self._due = state.step + max(1, int(rate * self._wait_s)) if since else state.step + 1
        self._drawn = (now, state.step)

    def begin_evaluation(self, engine: Engine) -> None:
        if self.bar is not None:
            split = engine.state.split
            self._inner = self.bar.add_task(
                f"  {visible(split)}", total=self.lengths.get(split), loss="", left=""
            )
            self._draw(engine)

    def evaluation_step(self) -> None:
        if self.bar is None or self._inner is None:
            return
        now = time.perf_counter()
        is_due = now - self._drawn[0] >= self._wait_s
        self.bar.update(self._inner, advance=1, refresh=is_due)
        if is_due:
            self._drawn = (now, self._drawn[1])

    def end_evaluation(self, engine: Engine) -> None:
        self._evaluated_at = engine.state.step
        if self.bar is not None and self._inner is not None:
            self.bar.remove_task(self._inner)
        self._inner = None
        if not self._will_be_told(engine):
            self._tell_evaluation(engine)

    def tell(self, engine: Engine) -> None:
        """Print a line: mean loss since the line before, metrics of this step, seconds, eta.

        The first line of a run that goes on within an epoch says what its mean is of.
        """
        state = engine.state
        now = time.perf_counter()
        begun = state.epoch if state.epoch_step == 0 else state.epoch + 1
        of = f"/{state.max_epochs}" if state.max_epochs else ""
        loss = f"loss {_loss(state):.4f}{self._since}"
        self._since = ""
        parts = [f"epoch {begun:>2}{of}", f"step {state.step:>5}", loss]
        if self._evaluated_at == state.step:
            parts += [f"{name} {value:.4f}" for name, value in state.metrics.items()]
            parts += self._weights
            if state.stop.is_settled and engine.is_cut_short:
                parts.append("evaluated at the stop")
        left = "" if self.is_live else self._time_left(engine)  # there it stands beside the bar
        self._draw(engine)
        parts += [f"{now - self._told:.1f} s", *([f"eta {left}"] if left else [])]
        if self.page is not None:
            self.page.add_row(parts)
        self.say("  ".join(parts), is_row=True)
        self._told, self._told_at = now, state.step

    def _will_be_told(self, engine: Engine) -> bool:
        """Return whether the line of this step, or the end of the run, shows the new results."""
        state = engine.state
        period = parse_period(self.every)
        if not period.count or state.stop.reason or state.step == state.max_steps:
            return True
        if isinstance(period.count, Fraction):
            return EveryShare(period.count, state.epoch_length or 0).next(state.step) == state.step
        if period.unit == "step":
            return state.step % period.count == 0
        ended = state.epoch + bool(state.epoch_step)
        return state.epoch_step in (0, state.epoch_length) and ended % period.count == 0

    def _tell_evaluation(self, engine: Engine) -> None:
        state = engine.state
        of = f"/{state.max_epochs}" if state.max_epochs else ""
        values = [
            f"{name} {value:.4f}"
            for name, value in state.metrics.items()
            if name.startswith(f"{state.split}/")
        ]
        values += self._weights
        self.say("  ".join([f"epoch {state.epoch + 1:>2}{of}", f"step {state.step:>5}", *values]))

    def end(self, engine: Engine) -> None:
        """A run may end between two lines: what came after the last has one of its own."""
        if self._told_at != engine.state.step and parse_period(self.every).count:
            self.tell(engine)
        self.close()
        state = engine.state
        share = " ".join(
            f"{name} {value:.1f}s" for name, value in engine.seconds.items() if value >= 0.05
        )
        spent = f" ({share})" if share else ""
        self.logger.info(
            "%d steps in %.1f s%s", state.step, time.perf_counter() - self._begun[0], spent
        )

    def say(self, line: str, *, is_row: bool = False) -> None:
        """Print a line and log it. On a terminal it is broken where two blanks are.

        A notebook has the rows of epochs in a table instead.
        """
        if self.quiet:
            self.logger.info(line)
            return
        with _shown_once(self.logger):
            self.logger.info(line)
        if self.page is not None:
            if not is_row:
                self.page.say(line)
        elif self.bar is not None:
            assert self._terminal is not None
            shown = "\n".join(fold(visible(line), self._terminal.width))
            self.bar.console.print(shown, highlight=False, markup=False, soft_wrap=True)
        else:
            print(visible(line), file=self.stream, flush=True)

    def _leave_room(self) -> None:
        """Keep the bar off the end of its line.

        A terminal writes ^C there, and a line that wraps is not erased.
        """
        if self.bar is not None and self._terminal is not None:
            columns = self._terminal.width
            self.bar.console.width = columns - _ROOM if columns >= _NARROW else columns

    def close(self) -> None:
        if self.page is not None:
            self.page.close()
        if self.bar is not None:
            self._closing.close()
            self.bar.stop()
            self.bar = self._inner = None

    def _draw(self, engine: Engine) -> None:
        if self.page is not None:
            state = engine.state
            left = self._time_left(engine)
            text = f"loss {state.loss:.4f}" + (f" · eta {left}" if left else "")
            self.page.set_progress(_title(engine), state.step, engine.state.max_steps, text)
        if self.bar is not None and self._task is not None:
            state = engine.state
            left = self._time_left(engine)
            shown = f"eta {left}" if left else ""
            self._leave_room()
            self.bar.update(
                self._task,
                completed=state.step,
                loss=f"loss {state.loss:.4f}",
                left=shown,
                refresh=True,
            )

    def _time_left(self, engine: Engine) -> str:
        """Return the time left at the speed so far, evaluations included; "" if unknown."""
        state, (begun, first) = engine.state, self._begun
        spent = time.perf_counter() - begun
        steps = state.step - first
        if not steps:
            return ""
        total = engine.state.max_steps
        known = []
        if total is not None:
            known.append((total - state.step) * spent / steps)
        if engine.bounds.samples is not None and state.samples:
            known.append(
                (engine.bounds.samples / state.samples * state.step - state.step) * spent / steps
            )
        if engine.bounds.seconds is not None:
            known.append(engine.bounds.seconds - spent)
        return "" if not known or min(known) < 1 else duration(min(known))


def _loss(state: State) -> float:
    """Return the mean loss of the steps since the line before, else that of the newest step."""
    mean = state.mean_loss.take() if state.mean_loss is not None else math.nan
    return state.loss if math.isnan(mean) else mean


def _averaged_weights(engine: Engine) -> list[str]:
    """Return the remark on evaluations of averaged weights; nothing where there is no average."""
    is_averaged = any(average.evaluate for average in engine.bus.owners(EMA))
    return ["(averaged weights)"] if is_averaged else []


def _title(engine: Engine) -> str:
    state = engine.state
    return (
        f"epoch {state.epoch + 1}/{state.max_epochs}"
        if state.max_epochs
        else f"epoch {state.epoch + 1}"
    )


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


@contextlib.contextmanager
def _shown_once(logger: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> Iterator[None]:
    """Keep log records from the loggers above, which would print them a second time."""
    owner = logger if isinstance(logger, logging.Logger) else logger.logger
    before, owner.propagate = owner.propagate, False
    try:
        yield
    finally:
        owner.propagate = before


@contextlib.contextmanager
def _logs_above_the_bar() -> Iterator[None]:
    """Redirect the handlers of `logging` to the bar's streams.

    They hold the stream from before the bar, and would write into the middle of it.
    """
    moved: list[tuple[logging.StreamHandler[Any], Any]] = []
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    now = {sys.__stderr__: sys.stderr, sys.__stdout__: sys.stdout}
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        stream = getattr(handler, "stream", None)
        if type(handler) is logging.StreamHandler and stream in now and now[stream] is not stream:
            moved.append((handler, handler.setStream(now[stream])))
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)


@contextlib.contextmanager
def _debugger_without_bar(close: Callable[[], None]) -> Iterator[None]:
    """`breakpoint()` gets the terminal for itself; the bar does not come back."""
    before = sys.breakpointhook

    def hook(*args: Any, **kwargs: Any) -> Any:
        close()
        if before is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
            return before(*args, **kwargs)
        import pdb

        # Python's own hook would stop here, not in the user's line.
        return pdb.Pdb().set_trace(sys._getframe(1))

    sys.breakpointhook = hook
    try:
        yield
    finally:
        sys.breakpointhook = before


def describe_run(engine: Engine, *, why_unevaluated: str) -> list[str]:
    """Return lines on the length of the run, and on parameter groups where there are several.

    `why_unevaluated` says why nothing is evaluated, where that was not asked for.
    """
    state, source, lines = engine.state, engine.source, []
    if isinstance(source, Loader):
        lines += arithmetic(source, epochs=state.max_epochs, total=state.max_steps)
    if why_unevaluated:
        lines.append(f"nothing is evaluated: {why_unevaluated}")
    groups = describe_groups(engine.process.backward.optimizers, engine.process.model)
    return lines + (groups if groups[1:] else [])


_SHOWN_LINES = 20


class NotebookPage:
    """One output of a cell, which is updated while the run goes on."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rows: list[dict[str, str]] = []
        self._bar = ""
        self._handle: Any = None

    def say(self, line: str) -> None:
        """Show a line above the table."""
        self._lines.append(line)
        self.draw()

    def add_row(self, parts: Sequence[str]) -> None:
        """Add a row of parts such as "step  10" and "valid/acc 0.5": name and value."""
        row: dict[str, str] = {}
        for part in parts:
            name, _, value = part.partition(" ")
            is_seconds = value == "s"
            row["seconds" if is_seconds else name] = name if is_seconds else value.strip()
        self._rows.append(row)
        self.draw()

    def set_progress(self, title: str, step: int, total: int | None, text: str) -> None:
        """Show the bar of the run at a step; without a total it has no length."""
        length = f' max="{total}" value="{step}"' if total else ""
        of = f"/{total:,}" if total else ""
        self._bar = f"<progress{length}></progress> {escape(title)} · {step:,}{of} · {escape(text)}"
        self.draw()

    def close(self) -> None:
        """Leave the table without the bar."""
        self._bar = ""
        self.draw()

    def draw(self) -> None:
        """Show the page, or update what is shown."""
        # Not a dependency: whoever has a kernel has it.
        shown: Any = import_module("IPython.display")
        page = shown.HTML(self.html())
        if self._handle is None:
            self._handle = shown.display(page, display_id=True)
        else:
            self._handle.update(page)

    def html(self) -> str:
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        head = "".join(f"<th>{escape(visible(name))}</th>" for name in names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(row.get(name, ''))}</td>" for name in names) + "</tr>"
            for row in self._rows
        )
        lines = "\n".join(escape(visible(line)) for line in self._lines[-_SHOWN_LINES:])
        table = f"<table><tr>{head}</tr>{rows}</table>" if self._rows else ""
        return f"<pre>{lines}</pre>{table}<div>{self._bar}</div>"
