"""One run of a list, as the index remembers it."""

from __future__ import annotations

from pathlib import Path

from assay.formats import lease as leases
from assay.formats.event_log import Edit, labels_of
from assay.formats.run_file import Summary
from assay.query.status import RunState, seconds_of, state_of
from assay.store.index import Index
from assay.store.index_rows import IndexRow
from assay.store.layout import Project

ARCHIVED = "archived"
"""The label of runs that a list leaves out."""


class RunRow:
    """One run of a list: what its folder wrote, later edits, and what is derived."""

    __slots__ = ("_state", "index", "now_ns", "written")

    def __init__(self, index: Index, written: IndexRow, now_ns: int) -> None:
        self.index = index
        self.written = written
        self.now_ns = now_ns
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
        """Labels that it has now, in alphabetical order."""
        if not self.written.edits_json:  # thousands of runs have none
            return []
        return sorted(labels_of(self.edits))

    @property
    def status(self) -> str:
        """Status; `damaged` if the run's folder is unreadable."""
        written = self.written.status
        return self._open_state().status if written == "running" else written or "damaged"

    @property
    def duration_s(self) -> float | None:
        written = self.written
        if written.status == "running":
            now_s = seconds_of(written.started_ns, self._open_state(), self.now_ns)
            return written.seconds + now_s
        return written.seconds if written.status else None

    @property
    def summaries(self) -> dict[str, Summary]:
        return self.written.summaries

    def _open_state(self) -> RunState:
        if self._state is None:
            # The lease of this moment: a beat changes no folder, and the index knows nothing of it.
            self._state = state_of(self.path, "running", leases.read(self.path))
        return self._state
