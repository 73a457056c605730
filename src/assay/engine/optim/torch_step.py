"""The step of an optimizer of torch: without its entry in a profile, and left out by a flag."""

from __future__ import annotations

import torch
from torch.optim import SGD, Optimizer

from assay.engine.numerics import private_torch

# The code of what torch puts around a step. Others put something around it too, and it may say that
# it is torch's.
_wrap = getattr(Optimizer, "profile_hook_step", None)
_AROUND: object = _wrap(lambda optimizer: None).__code__ if _wrap is not None else object()


def take_step(optimizer: Optimizer) -> None:
    """Take the step of an optimizer, with its hooks, and its entry in a profile if there is one.

    Torch opens that entry whether or not somebody makes a profile: 15 % of a bare step.
    """
    take = type(optimizer).step
    bare = (
        getattr(take, "__wrapped__", None) if getattr(take, "__code__", None) is _AROUND else None
    )
    if (
        bare is None
        or "step" in vars(optimizer)
        or private_torch.is_profiled()
        or private_torch.has_step_hooks(optimizer)
    ):
        optimizer.step()
    else:
        bare(optimizer)


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
