"""Curves of runs as TensorBoard event files, one subfolder for each run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from assay.interop.event_file import EventFile
from assay.query.logged_rows import logged_rows
from assay.query.run import RunView


class Board:
    """Folder of event files that follows runs: `update` appends what was logged since."""

    def __init__(self, runs: Mapping[str, RunView], folder: Path) -> None:
        self._runs = dict(runs)
        self._files = {name: EventFile(folder / name) for name in runs}
        self._written = dict.fromkeys(runs, 0)

    def update(self) -> int:
        """Write the new points of all runs; return how many there were."""
        points = 0
        for name, run in self._runs.items():
            file = self._files[name]
            rows = list(logged_rows(run))
            for row in rows[self._written[name] :]:
                file.scalars(list(row.values.items()), row.step, row.time_ns / 1e9)
                points += len(row.values)
            self._written[name] = len(rows)
            file.flush()
        return points

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()
