"""Event log of a run, and the edits that people make to its record afterwards.

`events.jsonl` holds one RunFact a line, written by the training process alone; `edits.jsonl` one
Edit a line, appended by anyone. Each line is a JSON object with `fact` (the kind), `v` (its
version) and `at_ns` (unix time).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.core.errors import RecordError
from assay.core.facts import Changed, Ended, Evaluated, RunFact, Saved, Started, Warned
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import dataclass_from, dumps, parse_json, to_plain

_VERSION = 1
MAX_BYTES = 64 << 20

_RUN_FACTS: Mapping[str, type[RunFact]] = {
    "started": Started,
    "evaluated": Evaluated,
    "saved": Saved,
    "warned": Warned,
    "changed": Changed,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in _RUN_FACTS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Change made to a record afterwards: `what` was set to `new`, by whom.

    `old` keeps the original.

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
    """Fact and the unix time, in ns, at which it was recorded."""

    at_ns: int
    fact: RunFact


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Objects of a JSONL file, and the count of its unreadable lines, a torn last one included."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    unreadable: int = 0


def event_line(fact: RunFact, at_ns: int) -> str:
    """Return one line of `events.jsonl`, without its line end."""
    return dumps({"fact": _NAMES[type(fact)], "v": _VERSION, "at_ns": at_ns, **to_plain(fact)})


def edit_line(edit: Edit) -> str:
    """Return one line of `edits.jsonl`, without its line end."""
    return dumps({"fact": "edit", "v": _VERSION, **to_plain(edit)})


def read_events(path: Path) -> Iterator[Timed]:
    """Yield the facts of `events.jsonl` in order. Torn, damaged and unknown lines are skipped."""
    for data in read_lines(path).objects:
        kind = _RUN_FACTS.get(str(data.get("fact")))
        if kind is None:
            continue
        try:
            yield Timed(
                at_ns=dataclass_from(int, data.get("at_ns", 0)), fact=dataclass_from(kind, data)
            )
        except RecordError:
            continue


def read_edits(path: Path) -> Iterator[Edit]:
    """Yield the edits of `edits.jsonl` in the order in which they were made."""
    for data in read_lines(path).objects:
        try:
            yield dataclass_from(Edit, data)
        except RecordError:
            continue


def labels_of(edits: Iterable[Edit]) -> list[str]:
    """Return the labels that a run has after its edits, in the order in which they came."""
    now: dict[str, bool] = {}
    for edit in edits:
        if edit.what == "label":
            now[edit.key] = bool(edit.new)
    return [label for label, has in now.items() if has]


def read_lines(path: Path) -> Lines:
    """Read the JSON objects of a JSONL file, one a line; a missing file is empty.

    Raises OSError for anything that is not a regular file.
    """
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
