"""Imagined ranks: one process that computes as rank 0 of many, which do not exist."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.parallel.distributed_group import DistributedGroup
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.mesh import Mesh, init_mesh
from assay.engine.parallel.staged_group import StagedGroup
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


class ImaginedStagedGroup(ImaginedGroup, StagedGroup):
    """Stand-in StagedGroup: a rank without the last stage takes a mean of 1 for the loss."""

    def all_reduce_values(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def all_reduce_losses(
        self, kind: str, values: Sequence[float], *, has_none: bool
    ) -> tuple[str, list[float]]:
        if has_none:
            return json.dumps([False, [["", ""]], ""]), [1.0, 0.0]
        return kind, list(values)

    def all_gather(self, value: Any) -> list[Any]:
        return [value] * self.size


@contextmanager
def imagined_mesh(
    layout: Layout, device: torch.device, *, place: int = 0, bucket_mb: int = 0
) -> Iterator[Mesh]:
    """Lay out as many ranks as `layout` has; this process is the first at a place of the pipeline.

    The pipeline is the outermost axis: see `AXES`.
    """
    if not can_imagine_world():
        what = f"torch {torch.__version__} cannot stand for ranks that are not there."
        raise InputError(what, fix="Leave out --layout and [parallel].")
    with imagined_world(place * layout.processes // layout.pipeline, layout.processes):
        mesh = init_mesh(layout, device, bucket_mb=bucket_mb)
        group, size = mesh.ranks.group, mesh.ranks.bucket_bytes
        if layout.pipeline > 1:
            line = mesh.devices["pipeline"].get_group()
            mesh.ranks = ImaginedStagedGroup(group, line, bucket_bytes=size)
        else:
            mesh.ranks = ImaginedGroup(group, bucket_bytes=size)
        yield mesh
