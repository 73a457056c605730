"""Projects that a server shows, each opened when it is first asked for."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from assay.core.errors import InputError
from assay.core.regular_file import mtime_ns_of
from assay.query.catalog import Catalog
from assay.query.curves import CurveReader
from assay.query.inbox import Inbox
from assay.query.run_row import RunRow
from assay.store.known_projects import all_projects
from assay.store.layout import Project, RunFolder

FIRST_LOOK_S = 2.0
"""Seconds that requests wait for the first runs of an index that is made; then they show what is
there."""


@dataclass(slots=True)
class Home:
    """One project with its readers. `key` names it in addresses."""

    project: Project
    key: str
    curves: CurveReader
    catalog: Catalog
    inbox: Inbox
    first_look_at: float = 0.0
    """When all folders were first looked at, by the monotonic clock."""
    first_stamp_ns: int = 0
    """Time of change that the folder of the runs had then."""
    _first_look: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, project: Project) -> Home:
        curves = CurveReader()
        catalog = Catalog(project, summarize=curves.summaries_json)
        return cls(project, key_of(project), curves, catalog, Inbox(catalog))

    def ready(self) -> None:
        """Wait until there are runs to show, at most FIRST_LOOK_S after the first look at them.

        Every request waits: others would answer that there are no runs.
        """
        self.look()
        self.catalog.readable.wait(max(0.0, self.first_look_at + FIRST_LOOK_S - time.monotonic()))

    def look(self) -> None:
        """Start the thread that looks at all folders for the first time, unless it was started."""
        with self._lock:
            if self._first_look is None:
                self._first_look = threading.Thread(
                    target=self.catalog.synchronize, name="assay-first-look", daemon=True
                )
                self.first_look_at = time.monotonic()
                self.first_stamp_ns = self.read_stamp_ns()
                self._first_look.start()

    def read_stamp_ns(self) -> int:
        """Return the time of change of the folder of the runs, which may be a link."""
        return mtime_ns_of(self.project.runs_dir.resolve())

    @property
    def is_reading(self) -> bool:
        """True while all folders are looked at for the first time."""
        return self._first_look is not None and self._first_look.is_alive()

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.project.runs_dir / name)

    def folders(self, rows: Mapping[str, RunRow]) -> dict[str, RunFolder]:
        """Return the folders of runs by id; where they all lie is looked up once."""
        runs_dir = self.project.runs_dir
        return {run_id: RunFolder(runs_dir / row.written.folder) for run_id, row in rows.items()}


class ProjectSite:
    """All projects of this user, the one that the server was started in first."""

    def __init__(self, project: Project) -> None:
        self.first = Home.of(project)
        self._homes = {self.first.key: self.first}
        self._lock = threading.Lock()

    def home(self, key: str = "") -> Home:
        """Return the project of a key, the first one for ""; InputError for an unknown key."""
        if not key:
            return self.first
        with self._lock:
            if key not in self._homes:
                found = next(
                    (each for each in all_projects(self.first.project.root) if key_of(each) == key),
                    None,
                )
                if found is None:
                    raise InputError(
                        "There is no such project.", fix="`assay ls --all-projects` lists all"
                    )
                self._homes[key] = Home.of(found)
            return self._homes[key]

    def homes(self) -> Iterator[Home]:
        """Yield the projects that were opened."""
        with self._lock:
            yield from list(self._homes.values())

    def close(self) -> None:
        for home in self.homes():
            home.catalog.close()


def key_of(project: Project) -> str:
    """Return a short name that says nothing about where the project lies."""
    digest = hashlib.sha256(str(Path(project.root).resolve()).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]
