"""Optimizers of torch: without an entry in a profile, without the compiler, left out by a flag.

Making one and each of its steps import `torch._dynamo`, which takes a second: half of what a run
needs before its first step. Only who compiles needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from assay.engine.numerics import private_torch

# The code of what torch puts around a step. Others put something around it too, and it may say that
# it is torch's.
_wrap = getattr(Optimizer, "profile_hook_step", None)
_AROUND: object = _wrap(lambda optimizer: None).__code__ if _wrap is not None else object()
# And within that: what sets whether gradients are computed, as `torch.no_grad` would.
_set_mode = getattr(sys.modules[Optimizer.__module__], "_use_grad_for_differentiable", None)
_INSIDE: object = _set_mode(lambda optimizer: None).__code__ if _set_mode is not None else object()

_NOT_COMPILED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
_DISABLED = "__dynamo_disable"
"""Attribute where torch keeps what it calls in the place of a method that is not compiled."""


def leave_compiler_out() -> None:
    """Let the methods that torch keeps from its compiler run without loading it.

    As soon as it is loaded for another reason they are torch's own again.
    """
    for name in _NOT_COMPILED:
        method = getattr(Optimizer, name, None)
        written = getattr(method, "__wrapped__", None)
        if method is not None and written is not None and not hasattr(written, _DISABLED):
            setattr(written, _DISABLED, _until_loaded(method, written))


def _until_loaded(method: Callable[..., Any], written: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if private_torch.COMPILER_MODULE not in sys.modules:
            return written(*args, **options)
        vars(written).pop(_DISABLED, None)
        return method(*args, **options)

    return call


leave_compiler_out()


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
    elif (
        getattr(bare, "__code__", None) is _INSIDE
        and private_torch.COMPILER_MODULE not in sys.modules
    ):
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            bare.__wrapped__(optimizer)
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
