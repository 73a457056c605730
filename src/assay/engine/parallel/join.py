"""How a process finds the others of its run, and leaves them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from assay.core.errors import InputError
from assay.engine.parallel.layout import Layout, Mesh, laid_out


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What whoever started this process (assay itself, torchrun) says of the others in the environment."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0


def world(variables: Mapping[str, str] | None = None) -> World:
    """Read from RANK, WORLD_SIZE and LOCAL_RANK; a lone process where they are not all there."""
    variables = os.environ if variables is None else variables
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} <= variables.keys():
        return World()
    rank, count, local = (int(variables[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return World(rank=rank, count=count, local_rank=local)


def own_device(name: str | None, here: World) -> str | None:
    """The device of this process where each has one: `cuda` becomes that of its number on this machine."""
    if here.count == 1 or (name is None and not torch.cuda.is_available()) or name not in (None, "cuda"):
        return name
    if here.local_rank >= torch.cuda.device_count():
        raise InputError(
            f"Process {here.local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}.",
            fix=f"Use --nproc {torch.cuda.device_count()} at most, or --device cpu.",
        )
    return f"cuda:{here.local_rank}"


@contextmanager
def joined(here: World, device: torch.device, layout: Layout, *, bucket_mb: int = 0) -> Iterator[Mesh | None]:
    """Inside, the processes as they are laid out; None for a lone process."""
    if here.count == 1:
        yield None
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield laid_out(layout, device, bucket_mb=bucket_mb)
    finally:
        dist.destroy_process_group()
