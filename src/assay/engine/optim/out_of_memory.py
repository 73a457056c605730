"""Report of an out-of-memory error: what the step was made of, and what takes less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import AssayError
from assay.engine.data.shapes import shape_of
from assay.engine.numerics.structures import tensors_in

_MIB = 2**20
_CPU = "DefaultCPUAllocator: "


class OutOfMemoryError(AssayError):
    """A device has no memory left for a step; nothing of the step counts."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device had no memory left; on a CPU only the words of the error say so."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _CPU in str(error)
    )


def out_of_memory(
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    batches: Sequence[Any],
    step: int,
    error: BaseException,
) -> OutOfMemoryError:
    """Return the error with the batch shapes, the memory of the model, and settings to try."""
    weights: list[Tensor] = list(model.parameters())
    gathered = [tensor for optimizer in optimizers for tensor in tensors_in(optimizer.state)]
    trained = [weight for weight in weights if weight.requires_grad]
    sizes = {"weights": weights, "gradients": trained, "optimizer": gathered}
    parts = ", ".join(f"{name} {_mib(tensors):,.0f} MiB" for name, tensors in sizes.items())
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    shapes = "; ".join(dict.fromkeys(shape_of(batch) for batch in batches))
    tries = {
        f"accumulate = {2 * len(batches)}": "the same step in smaller parts",
        "activation_checkpoint = true": "activations are computed again in backward",
        'precision = "bf16"': "activations of half the size",
    }
    lines = "".join(f"\n       [train] {setting:<30}{what}" for setting, what in tries.items())
    return OutOfMemoryError(
        f"There was no memory left at step {step + 1}: {said}",
        where=f"batch {shapes}; {parts}; the rest is for activations",
        fix=f"try one of these, the first changes nothing but the time:{lines}",
    )


def _mib(tensors: Iterable[Tensor]) -> float:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / _MIB
