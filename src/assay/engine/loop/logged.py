"""What user code logs while it computes: weighted means over a step or a split, read late so that
no device waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.data.batches import size_of
from assay.engine.metrics.means import Mean

if TYPE_CHECKING:
    from assay.engine.parallel.data_parallel_group import DataParallelGroup

LATE = 64
"""Steps whose values may wait on a device before they are fetched together."""


class Logged:
    """Means by name. On the CPU they are read at the end of each step, where nothing waits; else
    `LATE` steps later.

    `batch` gives the batch that is being computed: a value stands for as many samples as it holds.
    """

    def __init__(self, batch: Callable[[], Any] = lambda: None, *, is_late: bool = False) -> None:
        self.means: dict[str, Mean] = {}
        self._batch = batch
        self._is_late = is_late
        self.is_idle = False  # what is computed counts for nothing
        self._waiting: list[tuple[int, dict[str, Mean]]] = []

    def add(self, name: str, value: Tensor | float, weight: Tensor | float | None = None) -> None:
        """InputError when the value is not one number."""
        if self.is_idle:
            return
        if isinstance(value, Tensor):
            if value.numel() != 1:
                what = f"{name!r} was logged with the shape {tuple(value.shape)}; a value is one number."
                raise InputError(what, fix=f'Write log("{name}", value.mean()).')
            value = value.detach().reshape(())
        if weight is None:
            weight = size_of(self._batch()) or 1
        mean = self.means.get(name)
        if mean is None:
            mean = self.means[name] = Mean()
        mean.add(value, weight)

    def take(self, prefix: str, ranks: DataParallelGroup | None = None) -> dict[str, float]:
        """All means by `prefix/name`, over all `ranks`; waits for the device. Afterwards there are
        none."""
        means, self.means = self.means, {}
        if ranks is not None:
            means = _of_all(means, ranks)
        return {
            f"{prefix}/{name}": value
            for name, value in zip(means, _read(list(means.values())), strict=True)
        }

    def end_step(self, step: int) -> dict[str, float]:
        """The means of the step that is completed, if they can be read at once; others wait for
        `read`."""
        if not self._is_late:
            return self.take("train")
        means, self.means = self.means, {}
        self._waiting.append((step, means))
        return {}

    def read(self) -> dict[int, dict[str, float]]:
        """All that waits, by step and name; one transfer from the device, however much it is."""
        waiting, self._waiting = self._waiting, []
        values = iter(_read([mean for _, means in waiting for mean in means.values()]))
        return {step: {f"train/{name}": next(values) for name in means} for step, means in waiting}


def _of_all(means: dict[str, Mean], ranks: DataParallelGroup) -> dict[str, Mean]:
    """The means of all ranks together; a name need not be on each of them."""
    if not any(ranks.all_reduce_values([len(means)])):
        return {}
    own = {name: (float(mean.total), float(mean.weight)) for name, mean in means.items()}
    whole: dict[str, Mean] = {}
    for theirs in ranks.all_gather(own):
        for name, pair in theirs.items():
            whole.setdefault(name, Mean()).add_sum(*pair)
    return whole


def _read(means: list[Mean]) -> list[float]:
    parts: list[Any] = [part for mean in means for part in (mean.total, mean.weight)]
    on_device = [part for part in parts if isinstance(part, Tensor)]
    if on_device:
        read = iter(torch.stack([part.reshape(()) for part in on_device]).tolist())
        parts = [next(read) if isinstance(part, Tensor) else part for part in parts]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [float(total / weight) if weight else float("nan") for total, weight in pairs]
