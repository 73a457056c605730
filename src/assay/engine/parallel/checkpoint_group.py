"""Ranks that write one checkpoint together, each its part."""

from __future__ import annotations

import json
from typing import Any

import torch.distributed as dist

from assay.engine.parallel.distributed_group import host_backend, peer_errors
from assay.formats.manifest import MeshAxis


class CheckpointGroup:
    """All ranks of a run, in a group of their own, so that they may write during training.

    Made by all of them together. `axes` are those of the layout that they write in.
    """

    def __init__(self, axes: tuple[MeshAxis, ...] = ()) -> None:
        self.rank = dist.get_rank()
        self.axes = axes
        self._group = dist.new_group(backend=host_backend())

    @property
    def is_first(self) -> bool:
        """True for the rank that publishes the checkpoint."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each rank, which is plain data, in rank order."""
        found: list[Any] = [None] * dist.get_world_size()
        with peer_errors():
            dist.all_gather_object(found, json.dumps(value), group=self._group)
        return [json.loads(each) for each in found]
