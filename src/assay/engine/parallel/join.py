"""One rank among the others: its part of the model, and its engine joined to each axis.

What divides weights is imported where it is used: a second, which every training would pay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from assay.core.sections import ParallelSection, StandardSections
from assay.engine.numerics.precision import in_precision
from assay.engine.parallel.data import JoinedEngine, join_data_parallel
from assay.engine.parallel.distributed_group import StagedGroup
from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.process_group import Mesh

if TYPE_CHECKING:
    from torch import nn

    from assay.engine.parallel.process_group import Mesh


def partition_model(
    model: nn.Module,
    mesh: Mesh,
    section: ParallelSection | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Keep in `model` only the part of this rank, along each axis of `mesh` but `data`. In place.

    `section` is [parallel], `dtype` that in which sharded blocks gather their weights. Where weights
    are sharded, all ranks begin with those of rank 0.
    """
    section = section or ParallelSection()
    if mesh.layout.tensor > 1:
        from assay.engine.parallel.tensor_parallel import apply_tensor_plan

        apply_tensor_plan(model, mesh.devices["tensor"], section.tensor_plan)
    if mesh.layout.pipeline > 1:
        assert isinstance(mesh.ranks, StagedGroup)
        group = mesh.devices["pipeline"].get_group()
        mesh.pipeline = Pipeline(model, mesh.layout, mesh.ranks, group)
    if mesh.layout.shard > 1:
        from assay.engine.parallel.sharding import shard_model

        mesh.ranks.broadcast_([*model.parameters(), *model.buffers()])
        mesh.ranks.sharding = shard_model(
            model, mesh, blocks=section.shard_blocks, stage=mesh.layout.stage, dtype=dtype
        )


def join_mesh(
    engine: JoinedEngine, mesh: Mesh | None, sections: StandardSections, device: torch.device
) -> list[str]:
    """Let the engine train together with the other ranks; return lines that describe how."""
    if mesh is None:
        return []
    join_data_parallel(engine, mesh.ranks)
    pipeline = join_pipeline(engine, mesh, sections, device)
    if mesh.layout.tensor == 1:
        return pipeline
    from assay.engine.parallel.tensor_parallel import GradientAgreement, describe_tensor_plan

    engine.bus.extend(GradientAgreement(mesh.devices["tensor"]).handlers())
    return [describe_tensor_plan(engine.process.model), *pipeline]


def join_pipeline(
    engine: JoinedEngine, mesh: Mesh | None, sections: StandardSections, device: torch.device
) -> list[str]:
    """Let the engine train through the stages of the model; return lines that describe them."""
    if mesh is None or mesh.pipeline is None:
        return []
    train, evaluate = sections.train.precision, sections.evaluate.precision
    mesh.pipeline.join(engine, lambda run: in_precision(train, device, run, evaluate=evaluate))
    return mesh.pipeline.lines
