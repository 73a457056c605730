"""Follower of the metrics of an open run, which reads only what was written since the last time."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import RecordError
from assay.formats.run_file import Summary
from assay.store.metrics_reader import ChangedError, MetricsReader
from assay.store.series import Block, Series, group_blocks, series_of
from assay.store.summaries import Fold

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Tail:
    """The curves of one run as far as they were read. Any thread may ask.

    Metrics that were replaced or cut off are read from their beginning again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._reader = MetricsReader(self._folder)
        self._windows: dict[int, NDArray[np.void]] = {}
        self._blocks: list[Block] | None = None
        self._summaries: dict[str, Summary] | None = None

    @property
    def rows(self) -> int:
        """Number of log calls read so far; it shrinks only when the metrics were replaced."""
        return sum(self._reader.rows.values())

    def update(self) -> bool:
        """Read what is new, and return whether there was anything."""
        with self._lock:
            before = self._reader.rows.copy(), len(self._reader.names.rewinds)
            try:
                try:
                    self._read()
                except ChangedError:
                    self._begin()
                    self._read()
            except (ChangedError, RecordError):  # whoever looks at the run is told of the damage
                return False
            is_new = before != (self._reader.rows, len(self._reader.names.rewinds))
            if is_new:
                self._blocks = self._summaries = None
            return is_new

    def series(
        self, names: Iterable[str] | None = None, *, branches: bool = False
    ) -> dict[str, Series]:
        """Return the curves as they are now, as copies."""
        with self._lock:
            return series_of(self._contents(), names=names, branches=branches)

    def summaries(self) -> dict[str, Summary]:
        """Return the summary of each metric over the current branch."""
        with self._lock:
            if self._summaries is None:
                fold = Fold()
                for block in self._contents():
                    curve = block.on_curve()
                    fold.add(curve.keys.names, curve.steps, curve.values, curve.places)
                self._summaries = fold.summaries()
            return self._summaries

    def _contents(self) -> list[Block]:
        if self._blocks is None:
            self._blocks = group_blocks(self._reader, self._windows.values())
        return self._blocks

    def _read(self) -> None:
        import numpy as np

        fresh: dict[int, list[NDArray[np.void]]] = {}
        for rows in self._reader.read():
            fresh.setdefault(rows.dtype["values"].shape[0], []).append(rows)
        for values, parts in fresh.items():
            known = [self._windows[values]] if values in self._windows else []
            self._windows[values] = np.concatenate([*known, *parts])
