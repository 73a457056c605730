"""A model divided among processes, before its optimizer is made: each keeps its part of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from assay.engine.parallel.layout import Mesh


def divide(model: nn.Module, mesh: Mesh) -> None:
    """Leave in `model` what this process has of it, along each axis of `mesh` but `data`. In place."""
    for axis in ("tensor", "pipeline", "shard"):
        if mesh.layout.sizes[axis] > 1:
            raise InputError(f"[parallel] {axis} is not there yet.")
