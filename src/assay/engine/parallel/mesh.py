"""Mesh of the ranks of a run, which realizes their layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import init_device_mesh

from assay.core.errors import InputError
from assay.core.sections import PARALLEL_AXES as AXES
from assay.engine.parallel.checkpoint_group import CheckpointGroup
from assay.engine.parallel.distributed_group import BUCKET_BYTES, DistributedGroup
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.staged_group import StagedGroup
from assay.formats.manifest import MeshAxis

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(slots=True, kw_only=True)
class Mesh:
    """Ranks of a run on their axes: `devices` has an axis for each name of AXES, of size 1 too.

    `ranks` are those that share the samples with this one; `writers` those that write a checkpoint
    together, None if one rank has all of it.
    """

    layout: Layout
    devices: DeviceMesh
    ranks: DistributedGroup
    pipeline: Pipeline | None = None
    """What this process has of a model that was split into stages."""
    writers: CheckpointGroup | None = None

    def at(self, axis: str) -> int:
        """Return the place of this rank along an axis, from 0."""
        return int(self.devices.get_local_rank(axis))


def init_mesh(layout: Layout, device: torch.device, *, bucket_mb: int = 0) -> Mesh:
    """Lay out the ranks of the default group; InputError for another number. Collective."""
    world = torch.distributed.get_world_size()
    if world != layout.processes:
        raise InputError(f"There are {world} processes; the layout is {layout}.")
    devices = init_device_mesh(device.type, tuple(layout.sizes.values()), mesh_dim_names=AXES)
    sharing = devices["data", "shard"]._flatten("samples").get_group()
    size = bucket_mb * 2**20 or BUCKET_BYTES
    if layout.pipeline > 1:
        ranks: DistributedGroup = StagedGroup(
            sharing, devices["pipeline"].get_group(), bucket_bytes=size
        )
    else:
        ranks = DistributedGroup(sharing, bucket_bytes=size)
    axes = tuple(MeshAxis(name=name, size=size) for name, size in layout.sizes.items())
    return Mesh(
        layout=layout,
        devices=devices,
        ranks=ranks,
        writers=CheckpointGroup(axes) if layout.is_divided else None,
    )
