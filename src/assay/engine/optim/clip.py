"""Clipping of the global gradient norm.

Bit-equal to `torch.nn.utils.clip_grad_norm_`, at half its cost on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.numerics import private_torch


def clip_norm_(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale gradients in place to a global 2-norm of at most `max_norm`; return the norm before.

    A norm that is not finite leaves the gradients unchanged: the caller decides what to do. On a
    device other than the CPU, reading the norm waits for the device. InputError for sparse
    gradients.
    """
    parameters, grads = _dense_gradients(parameters)
    if not grads:
        return 0.0
    if _are_mixed(grads):
        return _clip_mixed(parameters, grads, max_norm)
    total = torch.linalg.vector_norm(torch.stack(private_torch.foreach_norm(grads)))
    norm = float(total)
    # The coefficient is clamped at 1: clearly below the limit nothing is to be done, near it
    # torch's rounding decides.
    if math.isfinite(norm) and norm * 1.01 + 1e-6 > max_norm:
        private_torch.foreach_mul_(grads, (max_norm / (total + 1e-6)).clamp_(max=1.0))
    return norm


def clip_norm_on_device_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Clip like `clip_norm_`, without waiting for the device; return the 0-d norm before."""
    parameters, grads = _dense_gradients(parameters)
    if not grads:
        return torch.zeros(())
    is_mixed = _are_mixed(grads)
    norms = (
        torch.nn.utils.get_total_norm(grads)
        if is_mixed
        else torch.stack(private_torch.foreach_norm(grads))
    )
    total = norms if is_mixed else torch.linalg.vector_norm(norms)
    scale = torch.where(total < math.inf, (max_norm / (total + 1e-6)).clamp_(max=1.0), 1.0)
    if is_mixed:
        for grad in grads:
            grad.mul_(scale.to(grad.device))
    else:
        private_torch.foreach_mul_(grads, scale)
    return total


def _dense_gradients(parameters: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if any(grad.is_sparse for grad in grads):
        raise InputError(
            "Sparse gradients cannot be clipped.",
            fix="Leave out clip_norm, or use dense embeddings.",
        )
    return parameters, grads


def _are_mixed(grads: list[Tensor]) -> bool:
    device = grads[0].device
    dtype = grads[0].dtype
    return any(grad.device != device or grad.dtype != dtype for grad in grads)


def _clip_mixed(parameters: list[Tensor], grads: list[Tensor], max_norm: float) -> float:
    """Gradients of several devices or dtypes: torch sums them group by group."""
    total = torch.nn.utils.get_total_norm(grads)
    norm = float(total)
    if math.isfinite(norm):
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return norm
