"""Numbers that stay on the device until many are fetched together, so that no step waits for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.engine.loop.logged import LATE

if TYPE_CHECKING:
    from assay.engine.data.source import Window
    from assay.engine.loop.state import State
    from assay.engine.optim.optimizer_step_base import NonFiniteError

LATE_S = 1.0
"""Seconds that numbers may wait on a device at most."""


class Place(int):
    """Where a number will be among those that are read."""


class Numbers:
    """Tensors of one number each, to be read in one go; a `Place` stands for each until then."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.tensors: list[Tensor] = []

    def put(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return float(value)
        value = value.detach().reshape(()).to(self.device, non_blocking=True)
        self.tensors.append(
            value if value.is_floating_point() else value.double()
        )  # a count is not to be rounded
        return Place(len(self.tensors) - 1)


@dataclass(frozen=True, slots=True)
class Row:
    """What one update leaves on the device. `recall(values)` has the backward part say again what
    it says of it.

    `judge(values, step)`, afterwards and once, gives the error that ends the run, if that is the
    policy.
    """

    numbers: Tensor
    recall: Callable[[Sequence[float]], None]
    judge: Callable[[Sequence[float], int], NonFiniteError | None]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One step whose numbers are still to be read. `before`: the counters of the state as they were
    before it."""

    row: Row
    step: int
    before: dict[str, int]
    epoch: int | None


class Late:
    """The steps that wait to be read. `flag` is 1 on the device once an update must not reach the
    weights."""

    def __init__(self, device: torch.device) -> None:
        self.flag = torch.zeros((), device=device)
        self.waiting: list[Waiting] = []
        self.loss = math.nan
        """That of the newest step that was read, and is finite or may be otherwise."""
        self._read_at = perf_counter()

    def add(self, row: Row, state: State, window: Window) -> None:
        """The step that was just completed by `state` waits."""
        samples = window.samples
        before = {
            "epoch": state.epoch,
            "epoch_step": state.epoch_step - 1,
            "step": state.step - 1,
            "micro_step": state.micro_step - len(window.batches),
            "samples": state.samples - samples,
            "epoch_samples": state.epoch_samples - samples,
        }
        self.waiting.append(
            Waiting(row, state.step, before, state.epoch if state.epoch_step == 1 else None)
        )

    def is_due(self, now: float) -> bool:
        """Whether what waits has to be read now, at `now` by `perf_counter`."""
        return len(self.waiting) >= LATE or now - self._read_at >= LATE_S

    def read(self) -> list[tuple[Waiting, list[float]]]:
        """All that waits, with its numbers, in one transfer from the device for each kind of
        number."""
        waiting, self.waiting = self.waiting, []
        found = read([each.row.numbers for each in waiting])
        self._read_at = perf_counter()
        return list(zip(waiting, found, strict=True))


def read(rows: Sequence[Tensor]) -> list[list[float]]:
    """Tensors of one dimension as numbers; waits for the device once for each dtype, however many
    they are."""
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


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def copy_unless_(flag: Tensor, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target where `flag` is 0; where it is 1 they stay, bit for bit.

    Nothing waits for the flag. It is done on the bits as whole numbers, because a nan times 0 is no
    0; each of the three operations takes all tensors at once.
    """
    by_kind: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        word = _WORDS.get(target.element_size())
        if word is None or target.dtype != source.dtype:
            target.copy_(torch.where(flag.bool(), target, source.to(target.dtype)))
            continue
        ours, theirs = by_kind.setdefault(word, ([], []))
        ours.append(target.view(word))
        theirs.append(source.view(word))
    for word, (ours, theirs) in by_kind.items():
        change = torch._foreach_sub(theirs, ours)
        torch._foreach_mul_(change, (1 - flag).to(word))
        torch._foreach_add_(ours, change)
