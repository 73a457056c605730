"""Check that ranks with a copy of the same parameter compute the same gradient for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from assay.core.errors import InputError
from assay.core.events import Event, Every, Handler
from assay.engine.numerics.dtensor import global_norm, is_along

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

TOLERANCE = 1e-2
"""Relative difference of norms that rounding may cause; a partial gradient differs far more."""


class GradientAgreement:
    """Handler that refuses a tensor plan which leaves out a parameter working on divided features.

    Each rank holds a full copy of that parameter, but sees only its own features, so that its
    gradient is partial. `mesh` is the tensor axis. The check runs once, in the first step.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group()
        (self.axis,) = mesh.mesh_dim_names or ("",)
        self._is_known = False

    def handlers(self) -> list[Handler]:
        return [
            Handler(
                event=Event.BACKWARD_END,
                fn=self.check,
                when=Every(1),
                priority=1000,
                name="GradientAgreement",
            )
        ]

    def check(self, model: nn.Module) -> None:
        """Raise InputError for a parameter whose gradients differ. Collective, the first time."""
        if self._is_known:
            return
        self._is_known = True
        named = [
            (name, parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and not is_along(parameter, self.axis)
        ]
        if not named:
            return
        norms = torch.stack([global_norm([grad]).double() for _, grad in named])
        extremes = torch.cat([norms, -norms])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        largest = extremes[: len(named)]
        smallest = -extremes[len(named) :]
        for (name, _), differs in zip(
            named, (largest - smallest > TOLERANCE * largest).tolist(), strict=True
        ):
            if differs:
                raise InputError(
                    f"[parallel] tensor: each process finds another gradient of {name}, of which"
                    " all have the whole: it works on features that are divided.",
                    fix="Leave the layers around it out of the plan, or let them end and begin"
                    " with all features (colwise_gather_output, rowwise_split_input).",
                )
