"""Messages about runs: what finished, what died and why, what went on, what has stopped moving."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.core.errors import AssayError, InputError
from assay.core.facts import Ended, Evaluated, Started, Warned
from assay.core.formatting import duration, number
from assay.core.regular_file import read_bytes
from assay.formats.event_log import Timed, read_events
from assay.formats.heartbeats import STALLED_S
from assay.formats.metrics_file import metrics_state
from assay.query.catalog import Catalog
from assay.query.run_row import RunRow
from assay.query.standstill import RunStandstill, plateau_of, standstill_of
from assay.store.index_rows import IndexRow
from assay.store.layout import RunFolder
from assay.store.read_marks import Marks, read_marks

MessageKind = Literal[
    "finished", "failed", "stopped", "killed", "resumed", "nan", "disk full", "stalled", "plateau"
]

MOST_RUNS = 1_000
_SLACK_NS = 60 * 10**9
_MAX_STACKS = 1 << 20
_STALLED_FACTOR = 20
_NOT_FINITE = re.compile(r"\b(not finite|non-finite|nan|inf)\b", re.IGNORECASE)
_DISK_FULL = re.compile(r"disk is full|no space left|ENOSPC", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Message:
    """One thing that happened to a run. `text` is one line, `detail` a traceback or nothing."""

    id: str
    kind: MessageKind
    at_ns: int
    run: str
    tag: str
    text: str
    detail: str = ""
    is_read: bool = False

    @property
    def is_bad(self) -> bool:
        return self.kind in ("failed", "killed", "nan", "disk full", "stalled", "plateau")


class Inbox:
    """Messages of one project, for a long-lived reader; grown event files are read again."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[Path, tuple[tuple[int, int], list[Timed]]] = {}

    def messages(self, *, since_ns: int = 0, now_ns: int = 0) -> list[Message]:
        """Return the messages since a moment, the newest first; 0: as far back as a first visit."""
        now_ns = now_ns or time.time_ns()
        marks = read_marks(self._catalog.project)
        since_ns = since_ns or marks.until_ns
        # A message that was marked as unread may be of a run that has been silent since; and the
        # last event of a run
        # is written a moment after the end that the run itself names.
        oldest_ns = min([since_ns, *(at_of(each) for each in marks.unread)]) - _SLACK_NS
        found = [
            message
            for row in self._catalog.recent_rows(oldest_ns, MOST_RUNS)
            for message in self._of_run(row, marks, now_ns)
            if message.at_ns > since_ns or not message.is_read
        ]
        return sorted(found, key=lambda each: (each.at_ns, each.id), reverse=True)

    def _of_run(self, row: RunRow, marks: Marks, now_ns: int) -> Iterator[Message]:
        for kind, at_ns, text, detail in self._list_news(row, now_ns):
            name = f"{row.id}-{kind.replace(' ', '-')}-{at_ns}"
            yield Message(
                name, kind, at_ns, row.id, row.tag, text, detail, marks.is_read(name, at_ns)
            )

    def _list_news(self, row: RunRow, now_ns: int) -> Iterator[tuple[MessageKind, int, str, str]]:
        folder = RunFolder(row.path)
        events = self._events(folder)
        ends = [i for i, each in enumerate(events) if isinstance(each.fact, Ended)]
        for place, event in enumerate(events):
            match event.fact:
                case Started(attempt=attempt, step=step) if attempt > 1:
                    yield "resumed", event.at_ns, f"resumed at step {step:,}", ""
                case Ended(status="finished"):
                    is_now = place == ends[-1] and row.written.status == "finished"
                    text = (
                        _result(row.written)
                        if is_now
                        else _result_then(row.written, events[: place + 1])
                    )
                    yield "finished", event.at_ns, text, ""
                case Ended(status="failed") as end:
                    kind: MessageKind = "nan" if _NOT_FINITE.search(end.reason) else "failed"
                    yield kind, event.at_ns, end.reason or "failed", end.traceback
                case Ended(status="stopped") as end:
                    yield "stopped", event.at_ns, end.reason or f"stopped at step {end.step:,}", ""
                case Warned(message=message) if _DISK_FULL.search(message):
                    yield "disk full", event.at_ns, message, ""
                case Warned(message=message) if "not finite" in message:
                    yield "nan", event.at_ns, message, ""
                case _:
                    pass
        if row.written.status == "running" and not row.written.error:
            yield from _silent(row, folder, now_ns)

    def _events(self, folder: RunFolder) -> list[Timed]:
        try:
            status = os.stat(folder.events)
        except OSError:
            return []
        stamp = (status.st_size, status.st_mtime_ns)
        known = self._known.get(folder.path)
        if known is None or known[0] != stamp:
            try:
                known = (stamp, list(read_events(folder.events)))
            except (AssayError, OSError):
                known = (stamp, [])
            self._known[folder.path] = known
        return known[1]


def at_of(message: str) -> int:
    """Return the time in ns at the end of a message id; InputError for a text that is none."""
    text = message.rpartition("-")[2]
    if not text.isdecimal() or len(text) > 20:
        raise InputError(f"`{message[:80]}` is not the id of a message.")
    return int(text)


def _silent(
    row: RunRow, folder: RunFolder, now_ns: int
) -> Iterator[tuple[MessageKind, int, str, str]]:
    """Yield a message for an open run that was killed, hangs, or no longer learns."""
    heard_ns = max(metrics_state(folder.metrics)[1], row.written.started_ns)
    if row.status == "killed":
        lasted = duration(row.duration_s or 0.0)
        yield "killed", heard_ns, f"killed after {lasted}, without an end of its own", ""
    elif row.status == "running":
        found = standstill_of(folder)
        if found is None and not folder.heartbeat.exists():
            found = _nothing_logged(row, heard_ns, now_ns)
        if found is not None:
            yield "stalled", found.at_ns, found.text, _text(folder.stacks)
        best = row.written.best_metric, row.written.best_mode
        plateau = plateau_of(folder, best, row.summaries)
        if plateau is not None:
            yield "plateau", plateau.at_ns, plateau.text, ""


def _nothing_logged(row: RunRow, heard_ns: int, now_ns: int) -> RunStandstill | None:
    """Return the standstill of a run without heartbeats, if it has logged nothing for long."""
    points = max((each.count for each in row.summaries.values()), default=0)
    every_s = (heard_ns - row.written.started_ns) / 1e9 / points if points else 0.0
    limit_s = max(STALLED_S, _STALLED_FACTOR * every_s)
    if now_ns - heard_ns <= limit_s * 1e9:
        return None
    text = f"alive, and nothing logged for {duration((now_ns - heard_ns) / 1e9)}"
    return RunStandstill(at_ns=heard_ns + int(limit_s * 1e9), text=text)


def _result(row: IndexRow) -> str:
    return _describe_end(row.seconds, row.best_metric, row.best_value)


def _result_then(row: IndexRow, events: Sequence[Timed]) -> str:
    """Return what a run had come to at the last of these events: it was resumed since."""
    ran_ns, started_ns = 0, row.created_ns
    values = []
    for event in events:
        match event.fact:
            case Started():
                started_ns = event.at_ns
            case Ended():
                ran_ns += event.at_ns - started_ns
            case Evaluated(metrics=metrics) if row.best_metric in metrics:
                values.append(metrics[row.best_metric])
            case _:
                pass
    numbers = [value for value in values if value == value]
    best = (max if row.best_mode == "max" else min)(numbers, default=None)
    return _describe_end(ran_ns / 1e9, row.best_metric, best)


def _describe_end(seconds: float, metric: str, best: float | None) -> str:
    said = f"finished after {duration(seconds)}"
    return said if best is None else f"{said}, {metric} {number(best)}"


def _text(file: Path) -> str:
    """Return a text file; "" without one."""
    try:
        return read_bytes(file, _MAX_STACKS).decode("utf-8", "replace")
    except OSError:
        return ""
