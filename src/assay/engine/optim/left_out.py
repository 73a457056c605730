"""Updates that an optimizer leaves out by a flag on the device, as torch's fused ones can."""

from __future__ import annotations

import torch
from torch.optim import SGD, Optimizer

from assay.engine.numerics import private_torch


def can_leave_out(optimizer: Optimizer) -> bool:
    """Return whether `found_inf` makes its step a no-op, as in torch's fused optimizers."""
    if any(group.get("dampening") for group in optimizer.param_groups):
        return False  # the first momentum depends on whether there was one before
    return private_torch.supports_found_inf(optimizer)


def fill_momentum(optimizer: Optimizer) -> None:
    """Give SGD the momentum of parameters that are new to it: zeros.

    Torch makes the buffer within the step, uninitialised if the update is left out.
    """
    for group in optimizer.param_groups if isinstance(optimizer, SGD) else ():
        if group["momentum"]:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                if parameter.grad is not None and state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
