"""Losses of a process: one or several by name, as means or as (sum, weight) pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.numerics.deferred import Slot

LOSS = "loss"
"""The name of the loss in the output of a process; `loss_weight` beside it is what divided it,
None for a sum."""


@dataclass(frozen=True, slots=True)
class WeighedMean:
    """Mean with its denominator: the targets not ignored, class weights, or elements."""

    value: Tensor
    weight: Tensor | float

    def share(self, samples: int) -> Tensor:
        """Return the share in a mean over `samples`; 0 for a mean over nothing, which is nan.

        If the weight is the number of samples, the share is the mean itself, bit for bit.
        """
        if isinstance(self.weight, Tensor):
            return torch.where(self.weight != 0, self.value, 0.0) * (self.weight / max(samples, 1))
        return (
            self.value * (self.weight / max(samples, 1))
            if self.weight
            else torch.zeros_like(self.value)
        )


Loss = Tensor | WeighedMean | tuple[Tensor, Tensor | float | None]
"""Mean over the samples of the batch; mean over something else; (sum, weight) or (sum, None).

The loss of a window of (sum, weight) pairs is the sum of sums over the sum of weights; nothing
divides (sum, None).
"""
Losses = Loss | Mapping[str, Any]
"""One loss, or several by their names."""
Read = Callable[[Any], float]
"""Gives the number that a tensor holds, or what stands for one."""


def read_now(value: Any) -> float:
    """The number that a value holds; waits for the device."""
    return value.item() if isinstance(value, Tensor) else float(value)


def read_at(values: Sequence[float], value: Any) -> float:
    """The number that a value stands for among those that were read together."""
    return values[value] if isinstance(value, Slot) else float(value)


def worth_nothing(loss: Any) -> Any:
    """A loss that adds nothing to any gradient, and whose backward pass is that of `loss`."""
    if isinstance(loss, Mapping):
        return {name: worth_nothing(each) for name, each in loss.items()}
    if isinstance(loss, tuple):
        return tuple(None if each is None else each * 0 for each in loss)
    if isinstance(loss, WeighedMean):
        return WeighedMean(loss.value * 0, loss.weight * 0)
    return loss * 0


def detached(loss: Any) -> Any:
    """Return a loss without its graph; of a tuple, each part; of a weighed mean, the mean."""
    if isinstance(loss, Tensor):
        return loss.detach()
    if isinstance(loss, tuple):
        return tuple(detached(part) for part in loss)
    return loss.value.detach() if isinstance(loss, WeighedMean) else loss


def blame_loss(loss: object, error: Exception) -> None:
    """Raise InputError if `error` came from a loss whose type or shape cannot be trained on."""
    if isinstance(loss, Mapping):
        return  # each was looked at before
    try:
        check_loss(loss, "The loss")
    except InputError as blamed:
        raise blamed from error


def check_loss(loss: object, who: str) -> None:
    """InputError for a loss that nothing can be learned from."""
    total = loss[0] if isinstance(loss, tuple) and len(loss) == 2 else loss
    total = total.value if isinstance(total, WeighedMean) else total
    if not isinstance(total, Tensor):
        kind = f"tuple of {len(total)}" if isinstance(total, tuple) else type(total).__name__
        what = f"is a {kind}; it must be a tensor, or a (sum, weight) pair."
        fix = "Return what the criterion gave, not its .item() or .detach()."
    elif total.numel() != 1:
        what = f"has the shape {tuple(total.shape)}; it must be one number."
        fix = "Return loss.mean(), or the pair (loss.sum(), weight)."
    elif not total.requires_grad:
        what = "has no gradient: it depends on no parameter that is trained."
        fix = (
            "Was it detached, or computed under no_grad, or is every parameter of the model frozen?"
        )
    else:
        return
    raise InputError(f"{who[0].upper()}{who[1:]} {what}", where="forward_step", fix=fix)
