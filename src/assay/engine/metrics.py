"""Accumulators for evaluation: updated batch by batch, read once at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from assay.core.errors import InputError


class Metric(Protocol):
    """One number (or several, by name) about a whole split."""

    def reset(self) -> None: ...

    def update(self, output: Mapping[str, Any]) -> None:
        """Take in what the process returned for one batch."""
        ...

    def value(self) -> float | Mapping[str, float]:
        """Over everything since `reset`; nan when there was nothing."""
        ...


class Mean:
    """Weighted mean of numbers."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total = 0.0
        self.weight = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        self.total += value * weight
        self.weight += weight

    def value(self) -> float:
        return self.total / self.weight if self.weight else float("nan")


class Accuracy:
    """Share of samples whose true class is among the `top` highest scores.

    Reads `output["pred"]` of shape (batch, classes, ...) or, for `top` 1, class indices of the target's shape, and
    `output["target"]` of shape (batch, ...). A target of `ignore_index` is not counted.
    """

    def __init__(self, *, top: int = 1, ignore_index: int = -100) -> None:
        self.top = top
        self.ignore_index = ignore_index
        self.reset()

    def reset(self) -> None:
        self.right: Tensor | int = 0
        self.count: Tensor | int = 0

    def update(self, output: Mapping[str, Any]) -> None:
        try:
            pred, target = output["pred"], output["target"]
        except (KeyError, TypeError):
            raise InputError(
                "Accuracy needs `pred` and `target` in what the process returns.",
                fix='Return {"pred": ..., "target": ...} as the output of forward_step.',
            ) from None
        if pred.dim() == target.dim() and self.top == 1:
            hits = pred == target
        elif self.top == 1:
            hits = pred.argmax(dim=1) == target
        else:
            hits = (pred.topk(self.top, dim=1).indices == target.unsqueeze(1)).any(dim=1)
        kept = target != self.ignore_index
        self.right = self.right + (hits & kept).sum()
        self.count = self.count + kept.sum()

    def value(self) -> float:
        count = int(self.count)
        return int(self.right) / count if count else float("nan")


def size_of(batch: Any) -> int:
    """Number of samples in a batch: the first dim of the first tensor found in it."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for item in batch:
            size = size_of(item)
            if size:
                return size
    return 0


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor on `device`; anything else stays what it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
