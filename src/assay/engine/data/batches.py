"""Functions over batches of any structure: size, device, pinned memory."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.numerics.structures import mapped, parts_of, tensors_in


def size_of(batch: Any) -> int:
    """Return the number of samples: the first dim of the first tensor, 0 if there is none.

    A list of plain values counts as an array, a lone number in a tensor as one sample.
    """
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, (list, tuple)):  # at each step: a union would be made anew
        # Not `len`, which torch writes in Python.
        if batch and isinstance(batch[0], Tensor) and (sizes := batch[0].shape) and sizes[0]:
            return sizes[0]
        items = batch
    elif (parts := parts_of(batch)) is not None:
        items = [part for _, part in parts]
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
    """Return the batch with every tensor on `device`; an object with a method `to` moves itself."""
    if not isinstance(batch, Tensor) and callable(move := getattr(batch, "to", None)):
        return move(device)
    return mapped(
        batch, lambda tensor: tensor if tensor.is_meta else tensor.to(device, non_blocking=True)
    )


def pinned(batch: Any) -> Any:
    """Return the batch in page-locked memory, which is copied to a GPU asynchronously."""
    return mapped(batch, Tensor.pin_memory)


def leaves(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors, arrays and plain values of a batch or sample, by name."""
    parts = parts_of(batch)
    is_row = isinstance(batch, list | tuple) and not hasattr(batch, "_fields")
    if parts is None or (is_row and all(isinstance(item, str | int | float) for item in batch)):
        yield name, batch
        return
    for key, part in parts:
        within = f"{name}[{key}]" if is_row else f"{name}.{key}" if name else str(key)
        yield from leaves(part, within)


def digest(sample: Any) -> int:
    """32 bits that say whether two samples are the same; what is no value counts by its type."""
    value = 0
    for name, leaf in leaves(sample):
        value = crc32(name.encode(), value)
        if isinstance(leaf, torch.Tensor):
            leaf = leaf.detach().cpu()
            if (
                leaf.dtype in (torch.bfloat16, torch.complex32)
                or leaf.dtype.is_complex
                or leaf.dtype.itemsize == 1
            ):
                leaf = leaf.contiguous().reshape(-1).view(torch.uint8)
            leaf = leaf.numpy()
        if isinstance(leaf, np.ndarray):
            value = crc32(
                np.ascontiguousarray(leaf).tobytes(),
                crc32(f"{leaf.dtype}{leaf.shape}".encode(), value),
            )
        elif isinstance(
            leaf, bool | int | float | complex | str | bytes | list | tuple | None | np.generic
        ):
            value = crc32(repr(leaf).encode("utf-8", "surrogatepass"), value)
        else:
            value = crc32(type(leaf).__qualname__.encode(), value)
    return value


def blame_device(batch: Any, device: torch.device, error: BaseException) -> None:
    """Raise InputError if `error` is a device error of torch and the batch is not on `device`."""
    if isinstance(error, RuntimeError) and "device" in str(error):
        strays = {
            str(tensor.device) for tensor in tensors_in(batch) if tensor.device.type != device.type
        }
        if strays:
            raise InputError(
                f"The batch is on {', '.join(sorted(strays))}, the model on {device}.",
                fix="Leave the data on the CPU: the engine moves it to where the model is.",
            ) from error
