"""Facts: what happened in a run, and what people said about it afterwards.

`events.jsonl` holds one RunFact a line, written by the training process alone; `edits.jsonl` one
Edit a line, appended by anyone. Each line is a JSON object with `fact` (the kind), `v` (its
version) and `at_ns` (unix time).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.errors import RecordError
from assay.core.json_codec import dumps, from_plain, parse_json, to_plain
from assay.core.regular_file import read_bytes

VERSION = 1
MAX_BYTES = 64 << 20

EndStatus = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An attempt begins: the first launch of a run (attempt 1) or a resume. `step` is where it goes
    on."""

    attempt: int
    step: int = 0
    checkpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A split was evaluated. `partial` says how much of it was, when not all."""

    split: str
    step: int
    metrics: Mapping[str, float]
    samples: int = 0
    seconds: float = 0.0
    partial: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint is complete on disk. `best` tells that it is the best so far by the run's own
    criterion."""

    name: str
    kind: Literal["checkpoint", "keypoint", "best", "model"]
    step: int
    size_bytes: int = 0
    seconds: float = 0.0
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something the user should know: nothing stopped because of it."""

    message: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The training was changed while it went on: `what` was `before` up to `step` and is `after`
    from there on."""

    what: str
    step: int
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The attempt is over. `reason` is one line; `traceback` the user's part of the stack when it
    failed."""

    status: EndStatus
    step: int
    reason: str = ""
    traceback: str = ""


RunFact = Started | Evaluated | Saved | Warned | Changed | Ended
RUN_FACTS: Mapping[str, type[RunFact]] = {
    "started": Started,
    "evaluated": Evaluated,
    "saved": Saved,
    "warned": Warned,
    "changed": Changed,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in RUN_FACTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change made after the fact: `what` was set to `new`, by whom. The original is never
    overwritten.

    `what` is "note", "label", "tag", "link", "value" or "verdict"; `key` says which one of several.
    """

    what: Literal["note", "label", "tag", "link", "value", "verdict"]
    new: Any
    old: Any = None
    key: str = ""
    who: str = ""
    at_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A fact and when it was told (unix ns)."""

    at_ns: int
    fact: RunFact


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """What a JSONL file held, and how many lines could not be read (a torn last one counts too)."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    unreadable: int = 0


def event_line(fact: RunFact, at_ns: int) -> str:
    """One line of `events.jsonl`, without its line end."""
    return dumps({"fact": _NAMES[type(fact)], "v": VERSION, "at_ns": at_ns, **to_plain(fact)})


def edit_line(edit: Edit) -> str:
    """One line of `edits.jsonl`, without its line end."""
    return dumps({"fact": "edit", "v": VERSION, **to_plain(edit)})


def read_events(path: Path) -> Iterator[Timed]:
    """The facts of `events.jsonl` in order. Lines that are torn, damaged or of an unknown kind are
    passed over."""
    for data in read_lines(path).objects:
        kind = RUN_FACTS.get(str(data.get("fact")))
        if kind is None:
            continue
        try:
            yield Timed(at_ns=from_plain(int, data.get("at_ns", 0)), fact=from_plain(kind, data))
        except RecordError:
            continue


def read_edits(path: Path) -> Iterator[Edit]:
    """The edits of `edits.jsonl` in the order in which they were made."""
    for data in read_lines(path).objects:
        try:
            yield from_plain(Edit, data)
        except RecordError:
            continue


def read_lines(path: Path) -> Lines:
    """The JSON objects of a JSONL file, one a line. A file that is not there is empty. OSError when
    it is no file."""
    lines = Lines()
    unreadable = 0
    try:
        raw = read_bytes(path, MAX_BYTES)
    except FileNotFoundError:
        return lines
    for line in raw.split(b"\n"):
        if not line.strip(b"\0 \r\t"):
            continue
        try:
            data = parse_json(line)
        except ValueError:
            unreadable += 1
            continue
        if isinstance(data, dict):
            lines.objects.append(data)
        else:
            unreadable += 1
    return Lines(objects=lines.objects, unreadable=unreadable)
