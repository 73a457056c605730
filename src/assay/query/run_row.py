"""One run of a list, as the index remembers it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.core import lease as leases
from assay.core.event_log import Edit, labels_of
from assay.core.json_codec import parse_numbers
from assay.core.run_file import UNSAVED, Summary
from assay.query.status import RunState, seconds_of, state_of
from assay.store.index import Index
from assay.store.index_rows import IndexRow
from assay.store.layout import Project

ARCHIVED = "archived"
"""The label of runs that a list leaves out."""


class RunRow:
    """One run of a list: what its folder wrote, later edits, and what is derived."""

    __slots__ = ("_state", "index", "is_lost", "now_ns", "written")

    def __init__(
        self, index: Index, written: IndexRow, now_ns: int, *, is_lost: bool = False
    ) -> None:
        self.index = index
        self.written = written
        self.now_ns = now_ns
        self.is_lost = is_lost
        self._state: RunState | None = None

    @property
    def project(self) -> Project:
        return self.index.project

    @property
    def id(self) -> str:
        return self.written.id

    @property
    def path(self) -> Path:
        return self.project.runs_dir / self.written.folder

    @property
    def edits(self) -> list[Edit]:
        return self.written.edits

    @property
    def tag(self) -> str:
        return self.written.tag

    @property
    def labels(self) -> list[str]:
        if not self.written.edits_json:  # thousands of runs have none
            return []
        return labels_of(self.edits)

    @property
    def note(self) -> str | None:
        """The newest note."""
        return next((str(edit.new) for edit in reversed(self.edits) if edit.what == "note"), None)

    @property
    def status(self) -> str:
        """Status; `damaged` if the run's folder is unreadable, `lost` if its project is gone."""
        if self.is_lost:
            return "lost"
        written = self.written.status
        return self._open_state().status if written == "running" else written or "damaged"

    @property
    def is_unsaved(self) -> bool:
        """True if the run finished without keeping its final weights; `reason` says why."""
        return self.written.status == "finished" and self.written.reason.startswith(UNSAVED)

    @property
    def duration_s(self) -> float | None:
        written = self.written
        if written.status == "running" and not self.is_lost:
            now_s = seconds_of(written.started_ns, self._open_state(), self.now_ns)
            return written.seconds + now_s
        return written.seconds if written.status else None

    @property
    def summaries(self) -> dict[str, Summary]:
        return self.written.summaries

    @property
    def values(self) -> dict[str, Any]:
        """Results that are no curves, with later corrections."""
        return parse_numbers(json.loads(self.written.values_json))

    @property
    def best(self) -> dict[str, Any] | None:
        """The best value of the metric that the run watches, with metric, mode and step."""
        written = self.written
        if written.best_value is None:
            return None
        return {
            "metric": written.best_metric,
            "mode": written.best_mode,
            "value": written.best_value,
            "step": written.best_step,
        }

    def statistic(self, metric: str, statistic: str) -> float | None:
        """Return one of `STATISTICS` of a metric; None for a run without it."""
        # One number of many: the summaries of the other metrics are not made.
        summary = json.loads(self.written.summaries_json).get(metric)
        if summary is None:
            return None
        value = summary[statistic]
        return int(value) if statistic == "count" else float(value)

    def _open_state(self) -> RunState:
        if self._state is None:
            # The lease of this moment: a beat changes no folder, and the index knows nothing of it.
            self._state = state_of(self.path, "running", leases.read(self.path))
        return self._state
