"""`assay log`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import click

from assay.cli.one_run import run_argument
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.core.facts import Changed, Ended, Evaluated, RunFact, Saved, Started, Warned
from assay.core.formatting import duration, moment, number, size
from assay.core.regular_file import open_regular
from assay.core.terminal import visible
from assay.formats.event_log import Timed, event_line, read_events
from assay.formats.json_codec import dumps
from assay.query.find import find_run
from assay.query.run import RunView
from assay.store.layout import refusal

POLL_S = 0.3
_MOST_BYTES = 64 << 20


@click.command(
    name="log",
    help="Print the log of a run, or its output if it has no log, or its events.",
)
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the run ends.")
@click.option(
    "--events",
    is_flag=True,
    help="Its events instead: started, evaluated, saved, warned, changed, ended.",
)
@click.option("--json", "as_json", is_flag=True, help="With --events: one JSON object a line.")
@click.option(
    "-n", "--lines", metavar="N", type=click.IntRange(min=0), help="Only the last N lines."
)
def command(run: str, follow: bool, events: bool, as_json: bool, lines: int | None) -> int:
    if as_json and not events:
        raise InputError(
            "A log is text; --json prints its events.",
            fix=f"assay log {run} --events --json, or assay metrics {run} --json for the numbers",
        )
    view = find_run(run)
    source = _source(view, events, as_json)
    what = "No events" if events else "Nothing"
    echo_new(view, source, lines, follow=follow, what=what)
    return 0


def echo_new(
    view: RunView,
    source: LogLines,
    lines: int | None,
    *,
    follow: bool,
    what: str = "Nothing",
) -> None:
    """Print the last `lines` of a source, and with `follow` what comes until the run ends."""
    shown = source.more()
    for line in shown if lines is None else shown[len(shown) - min(lines, len(shown)) :]:
        echo(line)
    if follow:
        for line in _following(view, source.more):
            echo(line)
            sys.stdout.flush()
    elif not shown:
        echo(f"{what} so far. The run is {view.status_text}; its folder is {view.path}", err=True)
    warn_of_damage(view)


def warn_of_damage(view: RunView) -> None:
    for sentence in view.damages:
        echo(f"warning: {sentence}", err=True)


def _source(view: RunView, events: bool, as_json: bool) -> LogLines:
    if events:
        return _Events(view.folder.events, _event_object if as_json else event_lines)
    return _First(_Text(view.folder.log), _Text(view.folder.output))


class LogLines(Protocol):
    """Source of lines that grows while a run goes on."""

    def more(self, *, to_the_end: bool = False) -> list[str]:
        """Return the lines that were not given yet."""
        ...


class _Text:
    """The lines of a text file that were not given yet; a last one without its end waits for it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def more(self, *, to_the_end: bool = False) -> list[str]:
        try:
            with open(open_regular(self._path), "rb") as file:
                behind = os.fstat(file.fileno()).st_size - self._offset
                if behind > _MOST_BYTES:
                    told = (
                        f"... {size(behind - _MOST_BYTES)} are left out; all of it is in"
                        f" {self._path}"
                    )
                    self._offset += behind - _MOST_BYTES
                    file.seek(self._offset)
                    return [told, *self._lines(file.read(_MOST_BYTES), to_the_end=to_the_end)]
                file.seek(self._offset)
                return self._lines(file.read(_MOST_BYTES), to_the_end=to_the_end)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refusal(error, self._path, "The log cannot be read") from error

    def _lines(self, data: bytes, *, to_the_end: bool) -> list[str]:
        whole = len(data) if to_the_end else data.rfind(b"\n") + 1
        self._offset += whole
        if not whole:
            return []
        return [
            visible(line)
            for line in data[:whole].decode("utf-8", "replace").removesuffix("\n").split("\n")
        ]


class _First:
    """Lines of the first source that has some: of a script that only prints, of its output."""

    def __init__(self, *sources: LogLines) -> None:
        self._sources = sources

    def more(self, *, to_the_end: bool = False) -> list[str]:
        for source in self._sources:
            if lines := source.more(to_the_end=to_the_end):
                self._sources = (source,)
                return lines
        return []


class _Events:
    """The events that were not given yet, one line each."""

    def __init__(self, path: Path, told: Callable[[Timed], list[str]]) -> None:
        self._path = path
        self._told = told
        self._given = 0

    def more(self, *, to_the_end: bool = False) -> list[str]:
        try:
            events = list(read_events(self._path))
        except OSError as error:
            raise refusal(error, self._path, "The events cannot be read") from error
        fresh = events[self._given :]
        self._given = len(events)
        return [line for event in fresh for line in self._told(event)]


class MetricLines:
    """Steps that were not printed yet: a JSON object a line, with time and metrics.

    With `names` only these metrics. To `follow` a run, its newest step waits for the next one.
    """

    def __init__(self, view: RunView, names: Sequence[str] = (), *, follow: bool = False) -> None:
        self._view = view
        self._follow = follow
        self._names = frozenset(names)
        self._given = 0

    def more(self, *, to_the_end: bool = False) -> list[str]:
        from assay.query.logged_rows import logged_rows, merge_steps

        rows = merge_steps(logged_rows(self._view))
        if self._follow and not to_the_end:
            rows = rows[:-1]
        # Of a run that was resumed meanwhile from an earlier step there are fewer: it goes on
        # behind those.
        fresh = rows[self._given :]
        self._given = len(rows)
        return [
            dumps({"step": row.step, "time": row.time_ns / 1e9, "metrics": values})
            for row in fresh
            if (values := self._choose(row.values))
        ]

    def _choose(self, values: dict[str, float]) -> dict[str, float]:
        if not self._names:
            return values
        return {name: value for name, value in values.items() if name in self._names}


def _event_object(event: Timed) -> list[str]:
    return [event_line(event.fact, event.at_ns)]


def event_lines(event: Timed) -> list[str]:
    """An event in words; a traceback on lines of its own."""
    name, rest = _in_words(event.fact)
    lines = [f"{moment(event.at_ns)}  {name:<9}  {visible(rest)}".rstrip()]
    if isinstance(event.fact, Ended) and event.fact.traceback:
        lines += [f"  {visible(line)}" for line in event.fact.traceback.rstrip().split("\n")]
    return lines


def _in_words(fact: RunFact) -> tuple[str, str]:
    match fact:
        case Started(attempt=attempt, step=step, checkpoint=checkpoint):
            from_where = f" from {checkpoint or f'step {step}'}" if step or checkpoint else ""
            return "started", f"attempt {attempt}{from_where}"
        case Evaluated(split=split, step=step, metrics=metrics, partial=partial):
            values = ", ".join(f"{name} {number(value)}" for name, value in metrics.items())
            return "evaluated", f"{split} at step {step}: {values}" + (
                f" ({partial})" if partial else ""
            )
        case Saved(name=name, kind=kind, size_bytes=size_bytes, seconds=seconds, best=best):
            words = [
                kind,
                size(size_bytes),
                *([f"in {duration(seconds)}"] if seconds else []),
                *(["best"] if best else []),
            ]
            return "saved", f"{name} ({', '.join(words)})"
        case Warned(message=message, step=step):
            return "warned", message if step is None else f"at step {step}: {message}"
        case Changed(what=what, step=step, before=before, after=after):
            values = f": {before} -> {after}" if before or after else ""
            return "changed", f"at step {step}: {what}{values}"
        case Ended(status=status, step=step, reason=reason):
            return "ended", f"{status} at step {step}" + (f": {reason}" if reason else "")


def _following(view: RunView, more: Callable[..., list[str]]) -> Iterator[str]:
    """New lines as they come, until the run does not run any more."""
    while True:
        # Asked before the lines are read: what is written in between is read, too.
        runs = RunView(view.folder).status == "running"
        yield from more(to_the_end=not runs)
        if not runs:
            return
        time.sleep(POLL_S)
