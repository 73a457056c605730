"""What can be told about any batch: how many samples it holds, where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError


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
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with every tensor changed; anything else stays what it is."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, change) for value in batch)
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
