"""One rank among the others: its part of the model, and its engine joined to each axis.

What divides weights is imported where it is used: a second, which every training would pay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.core.sections import ParallelSection, StandardSections
from assay.engine.numerics.dtensor import distribute_like, is_dtensor, local_tensor
from assay.engine.numerics.precision import in_precision
from assay.engine.parallel.data import JoinedEngine, join_data_parallel
from assay.engine.parallel.distributed_group import StagedGroup, broadcast_from_first_
from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.process_group import Mesh
from assay.engine.parallel.recorded_build import (
    Model,
    RecordedBuild,
    RecordedTensor,
    give_memory,
)

if TYPE_CHECKING:
    from assay.engine.parallel.process_group import Mesh


def build_model(constructor: Callable[[], Model], mesh: Mesh) -> tuple[Model, RecordedBuild | None]:
    """Build a model that is about to be divided, without memory for its large tensors.

    The record is None where a rank cannot build it so: then all have it whole, and `mesh` says why.
    Collective.
    """
    model, record, why = None, None, ""
    try:
        record = RecordedBuild()
        model = record.build(constructor)
    except Exception as error:  # if the model is to blame, it raises again when it is built whole
        why = str(error).partition("\n")[0] or type(error).__name__
    if mesh.ranks.all_true(model is not None):
        assert model is not None and record is not None
        return model, record if record.tensors(model) else None
    mesh.built_whole = f"built whole before it was divided: {why or 'as on another rank'}"
    return constructor(), None


def partition_model(
    model: nn.Module,
    mesh: Mesh,
    section: ParallelSection | None = None,
    dtype: torch.dtype | None = None,
    *,
    record: RecordedBuild | None = None,
) -> None:
    """Keep in `model` only the part of this rank, along each axis of `mesh` but `data`. In place.

    `section` is [parallel], `dtype` that in which sharded blocks gather their weights. Where weights
    are divided by `tensor` or `shard`, all ranks begin with those of rank 0. Tensors of a `record`
    get memory last, one after the other, and only for the part that is kept. Collective.
    """
    section = section or ParallelSection()
    recorded = {} if record is None else record.parameters(model)
    if mesh.layout.tensor > 1:
        from assay.engine.parallel.tensor_parallel import apply_tensor_plan

        apply_tensor_plan(model, mesh.devices["tensor"], section.tensor_plan)
    if mesh.layout.pipeline > 1:
        assert isinstance(mesh.ranks, StagedGroup)
        group = mesh.devices["pipeline"].get_group()
        mesh.pipeline = Pipeline(model, mesh.layout, mesh.ranks, group)
    if mesh.layout.shard > 1:
        from assay.engine.parallel.sharding import shard_model

        mesh.ranks.broadcast_(
            tensor for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta
        )
        mesh.ranks.sharding = shard_model(
            model, mesh, blocks=section.shard_blocks, stage=mesh.layout.stage, dtype=dtype
        )
    if record is not None:
        _fill(model, mesh, record, recorded)


def _fill(
    model: nn.Module,
    mesh: Mesh,
    record: RecordedBuild,
    recorded: Mapping[str, RecordedTensor],
) -> None:
    """Compute the tensors without memory one after the other, and keep the part of this rank."""
    groups = []
    if mesh.layout.tensor > 1:
        groups.append(mesh.devices["tensor"].get_group())
    if mesh.layout.shard > 1:
        groups.append(mesh.ranks.group)
    is_source = all(dist.get_rank(group) == 0 for group in groups)

    def compute(tensor: RecordedTensor) -> Tensor:
        if is_source:
            whole = record.compute(tensor, lends=True)
        else:
            whole = tensor.within(record.lend(tensor))
        whole = whole.to(mesh.devices.device_type)
        for group in groups:
            broadcast_from_first_(whole, group)
        return whole

    for name, parameter in model.named_parameters():
        if is_dtensor(parameter) and name in recorded:
            whole = compute(recorded[name])
            part = distribute_like(parameter, whole)
            is_lent = local_tensor(part).untyped_storage() is whole.untyped_storage()
            give_memory(parameter, part.clone() if is_lent else part)
    for tensor in record.tensors(model):
        give_memory(tensor, compute(record.find(tensor)).clone())
    if mesh.ranks.sharding is not None:
        mesh.ranks.sharding.use_new_memory(torch.device(mesh.devices.device_type))


def join_mesh(
    engine: JoinedEngine, mesh: Mesh | None, sections: StandardSections, device: torch.device
) -> list[str]:
    """Let the engine train together with the other ranks; return lines that describe how."""
    if mesh is None:
        return []
    join_data_parallel(engine, mesh.ranks)
    lines = [mesh.built_whole, *join_pipeline(engine, mesh, sections, device)]
    if mesh.layout.tensor == 1:
        return lines
    from assay.engine.parallel.tensor_parallel import GradientAgreement, describe_tensor_plan

    engine.bus.extend(GradientAgreement(mesh.devices["tensor"]).handlers())
    return [describe_tensor_plan(engine.process.model), *lines]


def join_pipeline(
    engine: JoinedEngine, mesh: Mesh | None, sections: StandardSections, device: torch.device
) -> list[str]:
    """Let the engine train through the stages of the model; return lines that describe them."""
    if mesh is None or mesh.pipeline is None:
        return []
    train, evaluate = sections.train.precision, sections.evaluate.precision
    mesh.pipeline.join(engine, lambda run: in_precision(train, device, run, evaluate=evaluate))
    return mesh.pipeline.lines
