"""Partition of a model among ranks, made before its optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.sections import ParallelSection
from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.sharding import shard_model
from assay.engine.parallel.staged_group import StagedGroup
from assay.engine.parallel.tensor_parallel import apply_tensor_plan

if TYPE_CHECKING:
    from torch import nn

    from assay.engine.parallel.mesh import Mesh


def partition_model(model: nn.Module, mesh: Mesh, section: ParallelSection | None = None) -> None:
    """Keep in `model` only the part of this rank, along each axis of `mesh` but `data`. In place.

    `section` is [parallel]. Where weights are sharded, all ranks begin with those of
    rank 0.
    """
    section = section or ParallelSection()
    if mesh.layout.tensor > 1:
        apply_tensor_plan(model, mesh.devices["tensor"], section.tensor_plan)
    if mesh.layout.shard > 1:
        mesh.ranks.broadcast_([*model.parameters(), *model.buffers()])
        mesh.ranks.sharding = shard_model(
            model, mesh, blocks=section.shard_blocks, stage=mesh.layout.stage
        )
    if mesh.layout.pipeline > 1:
        assert isinstance(mesh.ranks, StagedGroup)
        group = mesh.devices["pipeline"].get_group()
        mesh.pipeline = Pipeline(model, mesh.layout, mesh.ranks, group)
