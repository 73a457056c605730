"""Losses: a loss is a sum and a weight. Of one micro-batch, and added up over a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError, did_you_mean
from assay.engine.numerics.deferred import DeferredNumbers, Slot

LOSS = "loss"
"""The name of the loss in the output of a process; `loss_weight` beside it is what divided it,
None for a sum."""


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """Sum and weight of one micro-batch: every form of a loss is read as this one.

    `value` is differentiated: of a mean, it is the sum divided by the weight already. A mean
    without a weight is one over the samples of its batch; nothing divides a sum without one.
    """

    value: Tensor
    weight: Tensor | float | None
    is_mean: bool = True

    @property
    def kind(self) -> str:
        """Kind of the loss; the micro-batches of a window have the same."""
        if self.is_mean:
            return "mean" if self.weight is None else "weighed"
        return "sum" if self.weight is None else "pair"

    def mean(self) -> Tensor:
        """Return the loss as if its batch were the whole window."""
        if self.is_mean or self.weight is None:
            return self.value
        mean: Tensor = self.value / divisor_of(self.weight)
        return mean

    def share(self, samples: int) -> Tensor:
        """Return the share of a mean in one over `samples`; 0 of a mean over nothing, which is nan.

        If the weight is the number of samples, the share is the mean itself, bit for bit.
        """
        if self.weight is None:
            return self.value
        value = self.value
        if isinstance(self.weight, Tensor):
            value = torch.where(self.weight != 0, value, 0.0)
        elif not self.weight:
            value = torch.where(torch.zeros_like(value, dtype=torch.bool), value, 0.0)
        return value * (self.weight / max(samples, 1))


Loss = Tensor | WeightedLoss | tuple[Tensor, Tensor | float | None]
"""Mean over the samples of the batch; sum and weight; (sum, weight) or (sum, None).

The loss of a window of (sum, weight) pairs is the sum of sums over the sum of weights; nothing
divides (sum, None).
"""
Losses = Loss | Mapping[str, Any]
"""One loss, or several by their names."""
Read = Callable[[Any], Any]
"""Gives the number that a tensor holds, or what stands for one."""


def as_weighted(loss: Loss) -> WeightedLoss:
    """Return the sum and the weight of a loss."""
    if isinstance(loss, tuple):
        total, weight = loss
        return WeightedLoss(total, weight, is_mean=False)
    return loss if isinstance(loss, WeightedLoss) else WeightedLoss(loss, None)


@dataclass(slots=True)
class LossTerm:
    """One loss over a window: without a name, or one of several by name.

    `over` divides the weight: of means with a weight the samples of the window, of which their
    shares are. `divided_by` is the weight of a loss that is divided already. `grads` are those of
    its sums, until the weights of all micro-batches are known.
    """

    scalars: list[tuple[Any, float]] = field(default_factory=list)
    weight: Any = None
    grads: list[Tensor | None] | None = None
    over: int = 1
    divided_by: Any = None

    @property
    def kind(self) -> str:
        if self.weight is None:
            return ""
        return "pair" if self.over == 1 else "weighed"

    def clear(self) -> None:
        """Begin a window."""
        self.scalars.clear()
        self.weight = self.divided_by = None

    def add(self, value: Tensor, share: float, weight: Tensor | float | None, *, over: int) -> None:
        """Add the loss of one micro-batch."""
        self.scalars.append((value, share))
        if weight is not None:
            self.weight = weight if self.weight is None else self.weight + weight
            self.over = over

    def settle(self) -> None:
        """Divide the weight by `over`, once all of it is known."""
        if self.weight is not None and self.over != 1:
            self.weight = self.weight / self.over
            self.over = 1

    def is_counted(self, read: Read) -> bool:
        """Return whether anything in the window has a weight; a mean may not say its own."""
        weight = self.divided_by if self.weight is None else self.weight
        return weight is None or read(weight) != 0

    def sum(self, read: Read) -> Any:
        return sum(read(scalar) * share for scalar, share in self.scalars)

    def value(self, read: Read) -> float:
        """Return the loss of the window; nan where its weight is zero."""
        total: float = self.sum(read)
        if self.weight is None:
            return total
        weight = read(self.weight)
        return total / weight if weight else math.nan

    def put(self, numbers: DeferredNumbers) -> LossTerm:
        """Return the same term, with slots of `numbers` for what is on the device."""
        scalars = [(numbers.add(scalar), share) for scalar, share in self.scalars]
        weight = None if self.weight is None else numbers.add(self.weight)
        divided_by = None if self.divided_by is None else numbers.add(self.divided_by)
        return LossTerm(scalars, weight, divided_by=divided_by)


def sum_losses(
    unnamed: LossTerm, named: Mapping[str, LossTerm], factors: Mapping[str, float], read: Read
) -> tuple[float, dict[str, float]]:
    """Return the loss of a window and its losses by name; `read` returns the number of a scalar.

    A loss of which nothing in the window has a weight is nan, and is none of those by name.

    InputError when some losses have names, and some have none.
    """
    if not named:
        if not unnamed.is_counted(read):
            return math.nan, {}
        # A single scalar is divided already.
        if len(unnamed.scalars) == 1:
            return read(unnamed.scalars[0][0]), {}
        return unnamed.value(read), {}
    if unnamed.scalars:
        raise InputError("Of the losses of one window some have names, and some have none.")
    values = {name: term.value(read) for name, term in named.items() if term.is_counted(read)}
    counted = [
        factor * value for name, value in values.items() if (factor := factors.get(name, 1.0))
    ]
    return sum(counted) if counted else math.nan, values


@dataclass(slots=True)
class WindowNumbers:
    """Numbers of one window that its update is judged by: read at once, or slots of deferred ones.

    `norm` is that of the gradient before clipping. `largest` is an entry of the gradient, zero if
    all are; None where it can still be asked. `found`: an entry is not finite. Of deferred numbers
    the first `num_counted` have to be finite.
    """

    unnamed: LossTerm
    named: Mapping[str, LossTerm]
    norm: Any = None
    largest: Any = None
    found: Any = False
    num_counted: int = 0

    def is_finite(self, read: Read) -> bool:
        """Return whether the gradient is, and on a device what the flag there was set by."""
        counted = (read(Slot(i)) for i in range(self.num_counted))
        return not read(self.found) and all(map(math.isfinite, counted))


def read_now(value: Any) -> float:
    """Return the number that a value holds; waits for the device."""
    return value.item() if isinstance(value, Tensor) else float(value)


def read_at(values: Sequence[float], value: Any) -> float:
    """Return the number that a value stands for among those that were read together."""
    return values[value] if isinstance(value, Slot) else float(value)


def divisor_of(weight: Any) -> Any:
    """Return what divides a sum of this weight: 1 where it is zero, of a sum over nothing."""
    return weight + (weight == 0) if isinstance(weight, Tensor) else weight or 1.0


def zero_loss(loss: Any) -> Any:
    """Return a loss that adds nothing to any gradient, with the backward pass of `loss`."""
    if isinstance(loss, Mapping):
        return {name: zero_loss(part) for name, part in loss.items()}
    own = as_weighted(loss)
    weight = None if own.weight is None else own.weight * 0
    return WeightedLoss(own.value * 0, weight, own.is_mean)


def detach_loss(loss: Any) -> Any:
    """Return a loss without its graph; of a tuple, each part; of sum and weight, the value."""
    if isinstance(loss, Tensor):
        return loss.detach()
    if isinstance(loss, tuple):
        return tuple(detach_loss(part) for part in loss)
    return loss.value.detach() if isinstance(loss, WeightedLoss) else loss


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
    total = total.value if isinstance(total, WeightedLoss) else total
    if not isinstance(total, Tensor):
        kind = f"tuple of {len(total)}" if isinstance(total, tuple) else type(total).__name__
        what = f"is a {kind}; it must be a tensor, or a (sum, weight) pair."
        fix = "Return what the criterion gave, not its .item() or .detach()."
    elif total.numel() != 1:
        what = f"has the shape {tuple(total.shape)}; it must be one number."
        fix = "Return loss.mean(), or the pair (loss.sum(), weight)."
    elif total.is_complex():
        what = "is a complex number; nothing is larger or smaller than one."
        fix = "Return a real number, as loss.abs() or loss.real."
    elif not total.requires_grad:
        what = "has no gradient: it depends on no parameter that is trained."
        fix = (
            "Was it detached, or computed under no_grad, or is every parameter of the model frozen?"
        )
    else:
        return
    raise InputError(f"{who[0].upper()}{who[1:]} {what}", where="forward_step", fix=fix)


def check_loss_names(losses: Mapping[str, Loss], factors: Mapping[str, float]) -> None:
    """Raise InputError for a factor without a loss, and for a loss that gives no gradient."""
    for name in factors:
        if name not in losses:
            fix = did_you_mean(name, losses) or f"there are: {', '.join(losses)}"
            raise InputError(
                f"There is a weight for the loss {name!r}, which the step does not give.", fix=fix
            )
    for name, loss in losses.items():
        if factors.get(name, 1.0):
            check_loss(loss, f"the loss {name!r}")
    if not any(factors.get(name, 1.0) for name in losses):
        raise InputError(
            "There is no loss to train with: all of them have the weight 0, or there is none."
        )
