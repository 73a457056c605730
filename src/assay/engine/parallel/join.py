"""Engine of one rank, joined with the others on each axis of the mesh."""

from __future__ import annotations

import torch

from assay.core.sections import StandardSections
from assay.engine.numerics.precision import in_precision
from assay.engine.parallel.data import join_data_parallel
from assay.engine.parallel.gradient_agreement import GradientAgreement
from assay.engine.parallel.joined_engine import JoinedEngine
from assay.engine.parallel.mesh import Mesh
from assay.engine.parallel.tensor_parallel import describe_tensor_plan


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
