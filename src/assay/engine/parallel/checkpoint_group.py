"""The processes that write one checkpoint together, each what it holds of it."""

from __future__ import annotations

import json
from typing import Any

import torch.distributed as dist

from assay.core.manifest import MeshAxis
from assay.engine.parallel.data_parallel_group import host_backend, peer_errors


class CheckpointGroup:
    """All processes of a run, with connections of their own: they may write while the training goes
    on.

    Made by all of them together. `axes` are those of the layout that they write in.
    """

    def __init__(self, axes: tuple[MeshAxis, ...] = ()) -> None:
        self.rank = dist.get_rank()
        self.axes = axes
        self._group = dist.new_group(backend=host_backend())

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that publishes."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """What each process gives, which is plain data, in their order."""
        found: list[Any] = [None] * dist.get_world_size()
        with peer_errors():
            dist.all_gather_object(found, json.dumps(value), group=self._group)
        return [json.loads(each) for each in found]
