"""Optimizer step without its entry in a profile where nobody makes one.

Torch opens such an entry around `step` and `zero_grad`. Each costs about as much as all that the
engine adds to a step.
"""

from __future__ import annotations

from torch.optim import Optimizer

from assay.engine.numerics import private_torch

# The code of what torch puts around a step. Others put something around it too, and it may say that
# it is torch's.
_wrap = getattr(Optimizer, "profile_hook_step", None)
_AROUND: object = _wrap(lambda optimizer: None).__code__ if _wrap is not None else object()


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()`, with its hooks and its entry in a profile if there are any."""
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


def forget_gradients(optimizer: Optimizer) -> None:
    """`optimizer.zero_grad()` of torch's own."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
