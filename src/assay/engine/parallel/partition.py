"""Partition of a model among ranks, made before its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.sharding import shard_model
from assay.engine.parallel.tensor_parallel import apply_tensor_plan

if TYPE_CHECKING:
    from torch import nn

    from assay.engine.parallel.mesh import Mesh


def partition_model(
    model: nn.Module, mesh: Mesh, settings: Mapping[str, Any] | None = None
) -> None:
    """Keep in `model` only the part of this rank, along each axis of `mesh` but `data`. In place.

    `settings` are those of [parallel]. Where weights are sharded, all ranks begin with those of
    rank 0.
    """
    settings = settings or {}
    if mesh.layout.tensor > 1:
        apply_tensor_plan(model, mesh.devices["tensor"], settings.get("tensor_plan"))
    if mesh.layout.shard > 1:
        mesh.ranks.broadcast_([*model.parameters(), *model.buffers()])
        mesh.ranks.sharding = shard_model(
            model, mesh, blocks=settings.get("shard_blocks"), stage=mesh.layout.stage
        )
    if mesh.layout.pipeline > 1:
        mesh.pipeline = Pipeline(model, mesh)
