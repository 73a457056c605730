"""Accumulators for evaluation: updated batch by batch, read once at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
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
        if top < 1:
            raise InputError(f"Accuracy(top={top}): it must be at least 1.")
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
        classes = _classes(pred.shape, target.shape)
        if classes is None and (self.top > 1 or pred.shape != target.shape or pred.is_floating_point()):
            raise InputError(
                f"Accuracy cannot compare pred {tuple(pred.shape)} {pred.dtype} with target {tuple(target.shape)}.",
                fix="Give pred as (batch, classes, ...) scores or as class indices, target as (batch, ...) indices.",
            )
        if classes is not None and classes < max(self.top, 2):
            raise InputError(
                f"Accuracy(top={self.top}) needs at least {max(self.top, 2)} classes; pred has {classes}.",
                fix="With one score a sample, give its class instead: (score > 0).long() of the target's shape.",
            )
        if classes is None:
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


def _classes(pred: torch.Size, target: torch.Size) -> int | None:
    """The number of classes when `pred` has the target's shape with a dim of scores after the first; else None."""
    return pred[1] if len(pred) > 1 and pred[:1] + pred[2:] == target else None


def size_of(batch: Any) -> int:
    """Number of samples in a batch: the first dim of the first tensor or array in it; 0 when nobody can tell.

    A list of plain values counts as an array, a lone number in a tensor as one sample.
    """
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, list | tuple):
        items = batch
    elif isinstance(batch, Mapping):
        items = list(batch.values())
    else:
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return int(shape[0]) if len(shape) else 1
        return len(batch) if isinstance(batch, Sized) and not isinstance(batch, str | bytes) else 0
    alone = 0
    for item in items:
        size = size_of(item)
        if size == 1 and getattr(item, "shape", None) == ():
            alone = 1
        elif size:
            return size
    plain = items is batch and all(isinstance(item, str | bytes | int | float) for item in items)
    return alone or (len(items) if plain else 0)


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


def blame_device(batch: Any, device: torch.device, error: BaseException) -> None:
    """Raise InputError if `error` is torch's about devices, and the batch has tensors elsewhere than on `device`."""
    if isinstance(error, RuntimeError) and "device" in str(error):
        strays = {str(tensor.device) for tensor in _tensors(batch) if tensor.device.type != device.type}
        if strays:
            raise InputError(
                f"The batch is on {', '.join(sorted(strays))}, the model on {device}.",
                fix="Leave the data on the CPU: the engine moves it to where the model is.",
            ) from error


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for item in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(item)
