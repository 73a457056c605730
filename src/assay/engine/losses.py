"""What a process gives to be differentiated: one loss or several by their names, as means or as (sum, weight) pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from assay.core.errors import InputError
from assay.engine.late import Numbers, Place

Loss = Tensor | tuple[Tensor, Tensor | float]
"""A mean over the batch, or (sum, weight): then the window's loss is the sum of sums over the sum of weights."""
Losses = Loss | Mapping[str, Any]
"""One loss, or several by their names."""
Read = Callable[[Any], float]
"""Gives the number that a tensor holds, or what stands for one."""


@dataclass(slots=True)
class Term:
    """One of several named losses over a window. `grads`: those of its sums, until the weights are all known."""

    scalars: list[tuple[Tensor, float]] = field(default_factory=list)
    weight: Tensor | float | None = None
    grads: list[Tensor | None] | None = None

    def sum(self, read: Read) -> float:
        return sum(read(scalar) * share for scalar, share in self.scalars)

    def value(self, read: Read) -> float:
        total = self.sum(read)
        return total if self.weight is None else total / read(self.weight)

    def put(self, numbers: Numbers) -> Term:
        """The same with places in `numbers` for what is on the device."""
        return Term(*put_all(numbers, self.scalars, self.weight))


def read_now(value: Any) -> float:
    """The number that a value holds; waits for the device."""
    return value.item() if isinstance(value, Tensor) else float(value)


def read_at(values: Sequence[float], value: Any) -> float:
    """The number that a value stands for among those that were read together."""
    return values[value] if isinstance(value, Place) else float(value)


def put_all(numbers: Numbers, scalars: Sequence[tuple[Any, float]], weight: Any) -> tuple[list[Any], Any]:
    """Losses with their shares, and what divides them, each with its place among `numbers` instead."""
    placed = [(numbers.put(scalar), share) for scalar, share in scalars]
    return placed, None if weight is None else numbers.put(weight)


def worth_nothing(loss: Any) -> Any:
    """A loss that adds nothing to any gradient, and whose backward pass is that of `loss`."""
    if isinstance(loss, Mapping):
        return {name: worth_nothing(each) for name, each in loss.items()}
    return tuple(each * 0 for each in loss) if isinstance(loss, tuple) else loss * 0


def two_kinds() -> InputError:
    """For losses of one window that cannot be added up."""
    return InputError(
        "The losses of one window are of two kinds: some are means, some (sum, weight) pairs.",
        fix="Return the same kind for every batch.",
    )


def added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum of two gradients, of which either may be missing."""
    return other if one is None else one if other is None else one + other


def blame_loss(loss: object, error: Exception) -> None:
    """Raise InputError if `error` came from a loss that nothing can be learned from; its type and shape tell."""
    if isinstance(loss, Mapping):
        return  # each was looked at before
    try:
        check_loss(loss, "The loss")
    except InputError as blamed:
        raise blamed from error


def check_loss(loss: object, who: str) -> None:
    """InputError for a loss that nothing can be learned from."""
    total = loss[0] if isinstance(loss, tuple) and len(loss) == 2 else loss
    if not isinstance(total, Tensor):
        kind = f"tuple of {len(total)}" if isinstance(total, tuple) else type(total).__name__
        what = f"is a {kind}; it must be a tensor, or a (sum, weight) pair."
        fix = "Return what the criterion gave, not its .item() or .detach()."
    elif total.numel() != 1:
        what = f"has the shape {tuple(total.shape)}; it must be one number."
        fix = "Return loss.mean(), or the pair (loss.sum(), weight)."
    elif not total.requires_grad:
        what = "has no gradient: it depends on no parameter that is trained."
        fix = "Was it detached, or computed under no_grad, or is every parameter of the model frozen?"
    else:
        return
    raise InputError(f"{who[0].upper()}{who[1:]} {what}", where="forward_step", fix=fix)
