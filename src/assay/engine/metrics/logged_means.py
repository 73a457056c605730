"""Weighted means of what user code logs while it computes, over a step or over a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from assay.core.errors import InputError
from assay.engine.data.batches import size_of
from assay.engine.metrics.means import Mean
from assay.engine.numerics.deferred import Sums, fetch_means


class Ranks(Protocol):
    """Ranks over which means are merged. Both calls are collective."""

    def all_reduce_values(self, values: Sequence[float]) -> list[float]: ...

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

    def take(self) -> Sums:
        """Return (sum, weight) by name and begin anew; nothing waits for the device."""
        means, self.means = self.means, {}
        return {name: (mean.total, mean.weight) for name, mean in means.items()}

    def take_means(self, prefix: str, ranks: Ranks | None = None) -> dict[str, float]:
        """Return all means by `prefix/name`, merged over `ranks`, and begin anew.

        Waits for the device.
        """
        sums = self.take()
        if ranks is not None:
            sums = _merged(sums, ranks)
        return {f"{prefix}/{name}": value for name, value in fetch_means(sums).items()}


def _merged(sums: Sums, ranks: Ranks) -> Sums:
    """Return the sums and weights over all ranks; a name need not be on each of them."""
    if not any(ranks.all_reduce_values([len(sums)])):
        return {}
    own = {name: (float(total), float(weight)) for name, (total, weight) in sums.items()}
    merged: dict[str, Mean] = {}
    for theirs in ranks.all_gather(own):
        for name, pair in theirs.items():
            merged.setdefault(name, Mean()).add_sum(*pair)
    return {name: (mean.total, mean.weight) for name, mean in merged.items()}
