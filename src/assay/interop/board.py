"""Curves of runs as event files of TensorBoard, written by TensorBoard's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from assay.query.logged_rows import logged_rows
from assay.query.run import RunView


class Board:
    """A folder of event files, one subfolder a run. `update` adds what was logged since."""

    def __init__(self, runs: Mapping[str, RunView], folder: Path) -> None:
        """Needs tensorboard."""
        # Imported by name: it is no part of an installation without the extra.
        writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._runs = dict(runs)
        self._writers: dict[str, Any] = {name: writer(str(folder / name)) for name in runs}
        self._written = dict.fromkeys(runs, 0)

    def update(self) -> int:
        """Write the points that are new, and say how many they were."""
        points = 0
        for name, run in self._runs.items():
            rows = list(logged_rows(run))
            for row in rows[self._written[name] :]:
                values = [
                    self._summary.Value(tag=each, simple_value=value)
                    for each, value in row.values.items()
                ]
                summary = self._summary(value=values)
                self._writers[name].add_event(
                    self._event(wall_time=row.time_ns / 1e9, step=row.step, summary=summary)
                )
                points += len(values)
            self._written[name] = len(rows)
            self._writers[name].flush()
        return points

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self._writers.values():
            writer.close()
