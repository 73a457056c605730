"""Weighted means, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.data.batches import size_of
from assay.engine.metrics.metric import taken, wide


class Mean:
    """Weighted mean of numbers given to `add`, or of the field `of` of a process's output.

    The field is a (sum, weight) pair, a value for each sample, or one value: the mean over the
    samples of the batch, or over the weight that `loss_weight` gives beside `loss`. If that weight
    is None the values are sums, and so is the result.
    """

    def __init__(self, of: str = "loss") -> None:
        self.of = of
        self.reset()

    def reset(self) -> None:
        self.total: Tensor | float = 0.0
        self.weight: Tensor | float = 0.0
        self.is_sum = False

    def add(self, value: Tensor | float, weight: Tensor | float | None = 1.0) -> None:
        """Add a mean with its denominator: 0 for a mean over nothing, None for a sum."""
        total = wide(value)
        divisor = 1.0 if weight is None else wide(weight)
        if isinstance(divisor, Tensor):
            total = torch.where(divisor != 0, total, 0.0) * divisor
        elif weight is not None:
            total = total * divisor if divisor else 0.0
        self.add_sum(total, weight)

    def add_sum(self, total: Tensor | float, weight: Tensor | float | None) -> None:
        """Take in what is a sum already; with the weight None nothing divides it."""
        self.total = self.total + wide(total)
        if weight is None:
            self.is_sum = True
        else:
            self.weight = self.weight + wide(weight)

    def update(self, output: Any) -> None:
        (part,) = taken(output, self.of, by="Mean")
        divisor = f"{self.of}_weight"
        if isinstance(part, tuple):
            self.add_sum(*part)
        elif isinstance(output, Mapping) and divisor in output:
            self.add(part, output[divisor])
        elif getattr(part, "ndim", 0):
            self.add_sum(
                part.double().sum() if isinstance(part, Tensor) else part.sum(),
                math.prod(part.shape),
            )
        else:
            size = size_of({name: value for name, value in output.items() if name != self.of})
            if not size:
                raise InputError(
                    f"Mean(of={self.of!r}) does not know how many samples a value stands for.",
                    fix="Return a (sum, weight) pair, or a `target` beside it.",
                )
            self.add(part, size)

    def merge(self, other: Mean) -> None:
        self.add_sum(other.total, other.weight)
        self.is_sum = self.is_sum or other.is_sum

    @property
    def is_empty(self) -> bool:
        """True while nothing was given that counts."""
        return not self.is_sum and not self.weight

    def value(self) -> float:
        if self.is_sum:
            return float(self.total)
        weight = float(self.weight)
        return float(self.total) / weight if weight else float("nan")


class Perplexity:
    """Exponential of the mean loss in nats.

    If the samples have different lengths, the loss must be a (sum, weight) pair.
    """

    def __init__(self, of: str = "loss") -> None:
        self.mean = Mean(of)

    def reset(self) -> None:
        self.mean.reset()

    def update(self, output: Any) -> None:
        self.mean.update(output)

    def merge(self, other: Perplexity) -> None:
        self.mean.merge(other.mean)

    def value(self) -> float:
        try:
            return math.exp(self.mean.value())
        except OverflowError:
            return math.inf
