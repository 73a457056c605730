"""Rows of the index: one run as its folder has it, and what can be searched for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from assay.formats.event_log import Edit
from assay.formats.json_codec import dataclass_from
from assay.formats.run_file import Summary
from assay.store.cells import Cell

Kind = Literal["config", "default", "changed", "copy", "result", "label", "note", "desc"]


class IndexRow(NamedTuple):
    """One run as its folder has it.

    `status` is as written, "" when `error` says why nothing can be read. The reader derives further
    states (killed, unknown) and applies the edits.
    """

    folder: str
    id: str
    kind: str
    tag: str
    status: str
    created_ns: int
    seconds: float
    started_ns: int
    attempts: int
    step: int
    reason: str
    best_metric: str
    best_mode: str
    best_value: float | None
    best_step: int | None
    project: str
    parent: str
    config_hash: str
    seedless_hash: str
    sweep: str
    point: str
    sealed: int
    error: str
    summaries_json: str
    edits_json: str
    folder_mtime_ns: int
    edits_size: int
    metrics_mtime_ns: int

    @property
    def summaries(self) -> dict[str, Summary]:
        """Last, smallest, largest value of each metric; of an open run as far as it has come."""
        return {
            name: dataclass_from(Summary, data)
            for name, data in json.loads(self.summaries_json).items()
        }

    @property
    def edits(self) -> list[Edit]:
        """Edits of people after the fact, in order."""
        return (
            [dataclass_from(Edit, data) for data in json.loads(self.edits_json)]
            if self.edits_json
            else []
        )


class Item(NamedTuple):
    """Searchable fact of a run: a key of its config, a result, label, newest note or desc.

    A `default` is a key of the config that nobody wrote, with the value that the run took; a
    `changed` one names a key that a resume changed, and tells how. A `copy` names a key of its
    config, and the key that this has its value from. That is not in the saved config, and a key of
    it all the same. Its texts are `storable`.
    """

    kind: Kind
    name: str
    value: Cell


@dataclass(frozen=True, slots=True)
class ChangedRun:
    """A run that was read. `items` and `text` are None when only its metrics were."""

    row: IndexRow
    items: Sequence[Item] | None = None
    text: str = ""
    readme_mtime_ns: int = 0


class IndexedState(NamedTuple):
    """The part of an indexed run that tells whether its folder has changed since."""

    folder: str
    sealed: int
    folder_mtime_ns: int
    edits_size: int
    metrics_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Grown:
    """New metrics of a run of which nothing else changed; `step` is the last one."""

    folder: str
    summaries_json: str
    step: int
    metrics_mtime_ns: int


def storable(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values with a question mark for half a character, which is no text for a database."""
    return tuple(
        value.encode("utf-8", "replace").decode()
        if isinstance(value, str) and not value.isascii()
        else value
        for value in values
    )
