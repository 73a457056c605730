"""Numbers that stay on the device until many are fetched together, so that no step waits for it.

`torch._assert_async` would end the process from inside a kernel, with the weights of the device
lost. Here a flag on the device leaves the update out, and the host reads it later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from assay.engine.numerics import private_torch

MAX_STEPS = 64
"""Steps whose numbers may wait on a device."""
MAX_SECONDS = 1.0
"""Seconds that numbers may wait on a device."""

Sums = Mapping[str, tuple[Tensor | float, Tensor | float]]
"""(sum, weight) by name: what user code logged in a step, each with its number of samples."""


class Slot(int):
    """Index of a deferred number among those that are fetched with it."""


class DeferredNumbers:
    """Tensors of one number each, fetched in one transfer; a `Slot` stands for each until then."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tensors: list[Tensor] = []

    def add(self, value: Any) -> Any:
        """Return the slot of a tensor, or the float of a number that is on the host already."""
        if not isinstance(value, Tensor):
            return float(value)
        value = value.detach().reshape(()).to(self.device, non_blocking=True)
        if not value.is_floating_point():
            value = value.double()  # single precision would round a large count
        self.tensors.append(value)
        return Slot(len(self.tensors) - 1)


@dataclass(frozen=True, slots=True)
class DeferredUpdate:
    """Numbers of one optimizer update, still on the device.

    `recall(values)` sets the results of the optimizer step to those of this update, which was made
    after `step` completed ones. `judge(values, step)`, called once afterwards, returns whether the
    device has made it; NonFiniteError where that ends the run.
    """

    numbers: Tensor
    recall: Callable[[Sequence[float]], None]
    judge: Callable[[Sequence[float], int], bool]


@dataclass(frozen=True, slots=True)
class DeferredStep:
    """A step whose numbers are still to be fetched.

    `update` is None when only what was `logged` waits. `before` holds the counters of the state as
    they were before the step; `epoch` is set for the first step of an epoch. `is_left_out`: that
    the update was left out is known and counted.
    """

    step: int
    update: DeferredUpdate | None
    logged: Sums
    before: Mapping[str, int]
    epoch: int | None
    is_left_out: bool


class DeferredSteps:
    """Steps that wait for their numbers. `flag` is 1 on the device once an update must be left out.

    `loss` is that of the newest step that was fetched and accepted.
    """

    def __init__(self, device: torch.device) -> None:
        # Fused optimizers take it in float32 alone, whatever torch's default dtype is.
        self.flag = torch.zeros((), dtype=torch.float32, device=device)
        self.waiting: list[DeferredStep] = []
        self.loss = math.nan
        self._fetched_at = perf_counter()

    def is_due(self, now: float) -> bool:
        """Return whether the numbers have to be fetched at `now`, in seconds of `perf_counter`."""
        return len(self.waiting) >= MAX_STEPS or now - self._fetched_at >= MAX_SECONDS

    def fetch(self) -> list[tuple[DeferredStep, list[float], dict[str, float]]]:
        """Return (step, numbers, logged means) for all that wait, with one transfer per dtype."""
        steps, self.waiting = self.waiting, []
        updates = [step.update for step in steps if step.update is not None]
        logged = [pair for step in steps for pair in step.logged.values()]
        on_device = [part for pair in logged for part in pair if isinstance(part, Tensor)]
        rows = [update.numbers for update in updates]
        fetched = fetch_rows(rows + [part.reshape(1) for part in on_device])
        self._fetched_at = perf_counter()

        numbers = iter(fetched[: len(updates)])
        parts = iter(row[0] for row in fetched[len(updates) :])
        found = []
        for step in steps:
            values = [] if step.update is None else next(numbers)
            means = {name: _mean(pair, parts) for name, pair in step.logged.items()}
            found.append((step, values, means))
        return found


def fetch_means(sums: Sums) -> dict[str, float]:
    """Return sum / weight by name; wait for the device once per dtype."""
    on_device = [part for pair in sums.values() for part in pair if isinstance(part, Tensor)]
    parts = iter(row[0] for row in fetch_rows([part.reshape(1) for part in on_device]))
    return {name: _mean(pair, parts) for name, pair in sums.items()}


def _mean(pair: tuple[Tensor | float, Tensor | float], fetched: Iterator[float]) -> float:
    """Return sum / weight, taking the place of each tensor from `fetched`; nan without a weight."""
    total, weight = (next(fetched) if isinstance(part, Tensor) else part for part in pair)
    return float(total / weight) if weight else math.nan


def fetch_rows(rows: Sequence[Tensor]) -> list[list[float]]:
    """Return tensors of one dimension as lists of numbers; wait for the device once per dtype."""
    values: dict[torch.dtype, list[float]] = {}
    for dtype in dict.fromkeys(row.dtype for row in rows):
        values[dtype] = torch.cat([row for row in rows if row.dtype == dtype]).tolist()
    taken = dict.fromkeys(values, 0)
    found = []
    for row in rows:
        begin = taken[row.dtype]
        taken[row.dtype] = begin + len(row)
        found.append(values[row.dtype][begin : taken[row.dtype]])
    return found


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype by the bytes of an element."""


@torch.no_grad()
def copy_unless_(flag: Tensor, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target where `flag` is 0; leave them where it is 1.

    The host does not wait for the flag. The bits are copied as integers, because nan times 0 is
    not 0; each of the three operations takes all tensors at once.
    """
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        dtype = _INTEGERS.get(target.element_size())
        if dtype is None or target.dtype != source.dtype:
            target.copy_(torch.where(flag.bool(), target, source.to(target.dtype)))
            continue
        ours, theirs = by_dtype.setdefault(dtype, ([], []))
        ours.append(target.view(dtype))
        theirs.append(source.view(dtype))
    for dtype, (ours, theirs) in by_dtype.items():
        change = private_torch.foreach_sub(theirs, ours)
        private_torch.foreach_mul_(change, (1 - flag).to(dtype))
        private_torch.foreach_add_(ours, change)
