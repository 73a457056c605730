"""How the processes of a run are laid out: along which axes, and where in them one process is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh

from assay.core.errors import InputError
from assay.core.schema import PARALLEL_AXES as AXES
from assay.engine.parallel.ranks import BUCKET_BYTES, Ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How many processes there are along each axis.

    Those along `data` and `shard` have different samples; those along `tensor` and `pipeline` have parts of one model,
    and see the same samples.
    """

    pipeline: int = 1
    data: int = 1
    shard: int = 1
    tensor: int = 1

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Layout:
        """That of a [parallel] table."""
        return cls(**{name: int(settings[name]) for name in AXES if name in settings})

    @property
    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in AXES}

    @property
    def processes(self) -> int:
        return self.pipeline * self.data * self.shard * self.tensor

    @property
    def sharers(self) -> int:
        """How many processes have different samples."""
        return self.data * self.shard

    def __str__(self) -> str:
        """As `data 2 x tensor 2 = 4 processes`."""
        shown = [f"{name} {size}" for name, size in self.sizes.items() if size > 1] or [f"data {self.data}"]
        return f"{' x '.join(shown)} = {self.processes} processes"


@dataclass(slots=True, kw_only=True)
class Mesh:
    """The processes of a run, laid out: `devices` has an axis for each name of AXES, of size 1 too.

    `ranks` are those that share the samples with this one.
    """

    layout: Layout
    devices: DeviceMesh
    ranks: Ranks

    def at(self, axis: str) -> int:
        """Where this process is along an axis, from 0."""
        return int(self.devices.get_local_rank(axis))


def laid_out(layout: Layout, device: torch.device, *, bucket_mb: int = 0) -> Mesh:
    """Lay out the processes of the default group. Collective. InputError when there are not as many."""
    world = torch.distributed.get_world_size()
    if world != layout.processes:
        raise InputError(f"There are {world} processes; the layout is {layout}.")
    devices = init_device_mesh(device.type, tuple(layout.sizes.values()), mesh_dim_names=AXES)
    sharing = devices["data", "shard"]._flatten("samples").get_group()
    return Mesh(layout=layout, devices=devices, ranks=Ranks(sharing, bucket_bytes=bucket_mb * 2**20 or BUCKET_BYTES))
