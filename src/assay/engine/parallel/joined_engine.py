"""Engine as the axes of a mesh see it: they lie below the loop, and join it to its ranks."""

from __future__ import annotations

from typing import Any, Protocol

from assay.engine.data.source import Source
from assay.engine.optim.data_parallel_group import DataParallelGroup


class JoinedEngine(Protocol):
    """Attributes of an engine that an axis reads, or sets to take its part in each step."""

    process: Any
    state: Any
    source: Source
    ranks: DataParallelGroup
    pipeline: Any
    bus: Any
