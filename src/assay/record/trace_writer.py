"""Writer of a trace: what was written survives the death of the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from assay.core.directory import create_file, make_directory
from assay.store.layout import refusal


class TraceWriter:
    """Writer of one trace file, one write call a frame. A full disk ends the trace, not the run."""

    def __init__(self, path: Path, *, on_problem: Callable[[str], None]) -> None:
        self.path = path
        self._on_problem = on_problem
        self._fd: int | None = None
        try:
            make_directory(path.parent)
            self._fd = create_file(path, exclusive=False)
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        """Append frames; after a write that failed, nothing more."""
        if self._fd is None:
            return
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(f"{len(data) - written} of {len(data)} bytes were not written")
        except OSError as error:
            self.close()
            self._give_up(error)

    def close(self) -> None:
        """Close the file; what was written stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _give_up(self, error: OSError) -> None:
        self._on_problem(
            f"{refusal(error, self.path, 'The trace cannot be written')} The run goes on without "
            "it."
        )
