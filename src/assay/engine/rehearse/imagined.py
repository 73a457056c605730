"""Imagined ranks: one process that computes as rank 0 of many, which do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.parallel.distributed_group import DistributedGroup
from assay.engine.parallel.mesh import Layout, Mesh, init_mesh
from assay.engine.rehearse.fake import can_imagine_world, imagined_world


class ImaginedGroup(DistributedGroup):
    """Stand-in DistributedGroup in which every rank has the values of this one."""

    def all_reduce_stage_values(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def all_reduce_losses(
        self, kind: str, values: Sequence[float], *, has_none: bool
    ) -> tuple[str, list[float]]:
        return kind, list(values)

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Nobody has other values."""

    def all_true(self, value: bool) -> bool:
        return value

    def all_gather_stage(self, value: Any) -> list[Any]:
        return [value] * self.size


@contextmanager
def imagined_mesh(layout: Layout, device: torch.device, *, bucket_mb: int = 0) -> Iterator[Mesh]:
    """Lay out as many ranks as `layout` has, of which this process is the first."""
    if not can_imagine_world():
        what = f"torch {torch.__version__} cannot stand for ranks that are not there."
        raise InputError(what, fix="Leave out --layout and [parallel].")
    if layout.pipeline > 1:
        what = f"A pipeline of {layout.pipeline} stages cannot be rehearsed yet."
        raise InputError(what, fix="Rehearse it with the other axes: --layout data=8,tensor=4.")
    with imagined_world(0, layout.processes):
        mesh = init_mesh(layout, device, bucket_mb=bucket_mb)
        mesh.ranks = ImaginedGroup(mesh.ranks.group, bucket_bytes=mesh.ranks.bucket_bytes)
        yield mesh
