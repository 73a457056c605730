"""Process group of a run and the mesh of its ranks: how a rank finds the others, and leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from assay.core.errors import InputError
from assay.core.sections import PARALLEL_AXES as AXES
from assay.core.sections import ParallelSection
from assay.engine.numerics.precision import autocast_dtype
from assay.engine.parallel.distributed_group import (
    BUCKET_BYTES,
    CheckpointGroup,
    DistributedGroup,
    StagedGroup,
)
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.nodes import first_host, port_of
from assay.engine.parallel.pipeline import Pipeline
from assay.formats.manifest import MeshAxis

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class ReadingGroup:
    """All ranks of a run, as they read a checkpoint: before they train, not meanwhile."""

    ranks: DistributedGroup

    @property
    def rank(self) -> int:
        return dist.get_rank()

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each rank, in rank order."""
        return self.ranks.all_gather_world(value)


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
    """The stages of a split model that this process holds."""
    writers: CheckpointGroup | None = None
    built_whole: str = ""
    """Line that says why the model was built whole before it was divided, "" if it was not."""

    @property
    def readers(self) -> ReadingGroup:
        """All ranks, which read a checkpoint together."""
        return ReadingGroup(self.ranks)

    def at(self, axis: str) -> int:
        """Return the place of this rank along an axis, from 0."""
        return int(self.devices.get_local_rank(axis))


def init_mesh(layout: Layout, device: torch.device, section: ParallelSection | None = None) -> Mesh:
    """Lay out the ranks of the default group; InputError for another number. Collective.

    `section` is [parallel]: it tells how gradients are sent.
    """
    world = torch.distributed.get_world_size()
    if world != layout.processes:
        raise InputError(f"There are {world} processes; the layout is {layout}.")
    devices = init_device_mesh(device.type, tuple(layout.sizes.values()), mesh_dim_names=AXES)
    sharing = devices["data", "shard"]._flatten("samples").get_group()
    how = choose_gradient_format(section or ParallelSection())
    if layout.pipeline > 1:
        line = devices["pipeline"].get_group()
        ranks: DistributedGroup = StagedGroup(sharing, line, **how)
    else:
        ranks = DistributedGroup(sharing, **how)
    axes = tuple(MeshAxis(name=name, size=size) for name, size in layout.sizes.items())
    return Mesh(
        layout=layout,
        devices=devices,
        ranks=ranks,
        writers=CheckpointGroup(axes) if layout.is_divided else None,
    )


def choose_gradient_format(section: ParallelSection) -> dict[str, Any]:
    """Return the arguments of a group for [parallel]: in what pieces and format gradients go."""
    return {
        "bucket_bytes": section.bucket_mb * 2**20 or BUCKET_BYTES,
        "gradient_dtype": autocast_dtype(section.gradient_precision),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Ranks of a run, as the environment of assay, torchrun or srun describes them."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1
    """Number of processes on this machine."""
    restarts: int = 0
    """How often all of them were started again, after one failed."""
    address: str = ""
    """Where they meet, unless torch finds that in the environment."""


def world(variables: Mapping[str, str] | None = None) -> World:
    """Read the ranks from RANK, WORLD_SIZE etc., else from srun's variables, else a lone process.

    InputError if the ranks could not find each other.
    """
    variables = os.environ if variables is None else variables
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} <= variables.keys():
        rank, count, local = (int(variables[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        if count > 1 and variables["MASTER_PORT"] == "0":
            fix = "Start them by torchrun --standalone, or name a free port: --master-port 29500."
            raise InputError(
                "The processes of this run cannot find each other: their port is 0.", fix=fix
            )
        restarts = int(variables.get("TORCHELASTIC_RESTART_COUNT", 0))
        here = int(variables.get("LOCAL_WORLD_SIZE", 1))
        return World(rank=rank, count=count, local_rank=local, local_count=here, restarts=restarts)
    # SLURM_NTASKS is set in the batch script, too.
    count = int(variables.get("SLURM_STEP_NUM_TASKS", 1))
    if count == 1:
        return World()
    address = f"tcp://{first_host(variables['SLURM_STEP_NODELIST'])}:{port_of(variables)}"
    rank = int(variables["SLURM_PROCID"])
    local = int(variables["SLURM_LOCALID"])
    here = -(-count // int(variables.get("SLURM_STEP_NUM_NODES", 1)))
    return World(rank=rank, count=count, local_rank=local, local_count=here, address=address)


def device_of_rank(name: str | None, here: World) -> str | None:
    """Return the device of this rank: `cuda` becomes `cuda:N`, by its number on this machine.

    srun may show each of its processes a GPU of its own, which is number 0 there.
    """
    if (
        here.count == 1
        or (name is None and not torch.cuda.is_available())
        or name not in (None, "cuda")
    ):
        return name
    if here.address and torch.cuda.device_count() == 1:
        return "cuda:0"
    if here.local_rank >= torch.cuda.device_count():
        gpus = torch.cuda.device_count()
        raise InputError(
            f"Process {here.local_rank} of this machine has no GPU: there are {gpus}.",
            fix=f"Use --nproc {gpus} at most, or --device cpu." if gpus else "Use --device cpu.",
        )
    return f"cuda:{here.local_rank}"


@contextmanager
def process_group(
    here: World, device: torch.device, layout: Layout, section: ParallelSection | None = None
) -> Iterator[Mesh | None]:
    """Join the other ranks; yield their mesh, or None for a lone process."""
    if here.count == 1:
        yield None
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, number = _meetings(here.address, os.environ.get("MASTER_PORT", ""), here)
    # Torch does not list these two names for type checkers.
    meeting = dist.PrefixStore(f"assay_{next(number)}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=meeting, rank=here.rank, world_size=here.count)
    try:
        yield init_mesh(layout, device, section)
    finally:
        dist.destroy_process_group()


@cache
def _meetings(address: str, port: str, here: World) -> tuple[Any, Iterator[int]]:
    """Return the store in which the ranks meet, and the numbers of their meetings.

    Both are kept for the next run of this OS process. In a store of torchrun a second group would
    read the addresses of the first one; a store of rank 0 would be gone, or not yet. Another `port`
    means another launch, which has a store of its own.
    """
    where = address or "env://"
    store, _, _ = next(dist.rendezvous(where, here.rank, here.count))  # type: ignore[attr-defined]
    return store, count()
