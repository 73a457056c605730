"""Weighted means: of a field of outputs, and of what user code logs over a step or a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.data.batches import size_of
from assay.engine.metrics.metric import take_parts, wide
from assay.engine.numerics.deferred import Sums, fetch_means


class Mean:
    """Weighted mean of numbers given to `add`, or of the field `of` of a process's output.

    The field is a (sum, weight) pair, a value for each sample, or one value: the mean over the
    samples of the batch, or over the weight that `loss_weight` gives beside `loss`. If that weight
    is None the values are sums, and so is the result. `is_empty`: nothing was given, not even a
    value without weight, the mean of which is nan.
    """

    def __init__(self, of: str = "loss") -> None:
        self.of = of
        self.reset()

    def reset(self) -> None:
        self.total: Tensor | float = 0.0
        self.weight: Tensor | float = 0.0
        self.is_sum = False
        self.is_empty = True

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
        self.is_empty = False
        self.total = self.total + wide(total)
        if weight is None:
            self.is_sum = True
        else:
            self.weight = self.weight + wide(weight)

    def update(self, output: Any) -> None:
        (part,) = take_parts(output, self.of, by="Mean")
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
        if other.is_empty:
            return
        self.add_sum(other.total, other.weight)
        self.is_sum = self.is_sum or other.is_sum

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


class Ranks(Protocol):
    """Ranks over which means are merged, by a collective call."""

    def all_gather(self, value: Any) -> list[Any]: ...


class LoggedMeans:
    """Means by name, of values that may lie on a device; adding one never waits for it.

    `batch` returns the batch that is being computed: a value counts once for each of its samples.
    While `is_idle`, values are ignored: the rank computes a batch that counts for nothing.
    """

    def __init__(self, batch: Callable[[], Any] = lambda: None) -> None:
        self.means: dict[str, Mean] = {}
        self.is_idle = False
        self._batch = batch

    def add(self, name: str, value: Tensor | float, weight: Tensor | float | None = None) -> None:
        """Add a value to the mean `name`; InputError when it is not one number."""
        if self.is_idle:
            return
        if isinstance(value, Tensor):
            if value.numel() != 1:
                shape = tuple(value.shape)
                what = f"{name!r} was logged with the shape {shape}; a value is one number."
                raise InputError(what, fix=f'Write log("{name}", value.mean()).')
            value = value.detach().reshape(())
        if weight is None:
            weight = size_of(self._batch()) or 1
        mean = self.means.get(name)
        if mean is None:
            mean = self.means[name] = Mean()
        mean.add(value, weight)

    def take(self, ranks: Ranks | None = None) -> Sums:
        """Return (sum, weight) by name, merged over `ranks`, and begin anew.

        Over ranks it waits for the device.
        """
        means, self.means = self.means, {}
        sums = {name: (mean.total, mean.weight) for name, mean in means.items()}
        return sums if ranks is None else _merge_over_ranks(sums, ranks)

    def take_means(self, prefix: str, ranks: Ranks | None = None) -> dict[str, float]:
        """Return all means by `prefix/name`, merged over `ranks`, and begin anew.

        Waits for the device.
        """
        sums = self.take(ranks)
        return {f"{prefix}/{name}": value for name, value in fetch_means(sums).items()}


def _merge_over_ranks(sums: Sums, ranks: Ranks) -> Sums:
    """Return the sums and weights over all ranks; a name need not be on each of them."""
    own = {name: (float(total), float(weight)) for name, (total, weight) in sums.items()}
    merged: dict[str, Mean] = {}
    for theirs in ranks.all_gather(own):
        for name, pair in theirs.items():
            merged.setdefault(name, Mean()).add_sum(*pair)
    return {name: (mean.total, mean.weight) for name, mean in merged.items()}
