"""A model divided among processes, before its optimizer is made: each keeps its part of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError
from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.tensor import divide_tensors

if TYPE_CHECKING:
    from torch import nn

    from assay.engine.parallel.layout import Mesh


def divide(model: nn.Module, mesh: Mesh, *, tensor_plan: Mapping[str, Any] | None = None) -> None:
    """Leave in `model` what this process has of it, along each axis of `mesh` but `data`. In place."""
    sizes = mesh.layout.sizes
    if sizes["shard"] > 1:
        raise InputError("[parallel] shard is not there yet.")
    if sizes["tensor"] > 1:
        divide_tensors(model, mesh.devices["tensor"], tensor_plan)
    if sizes["pipeline"] > 1:
        mesh.pipeline = Pipeline(model, mesh)
