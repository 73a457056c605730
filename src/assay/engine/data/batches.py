"""Batches of any structure: made of samples, their size, device, memory and digest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from assay.core.errors import InputError
from assay.engine.checkpoint.codec import as_bytes
from assay.engine.numerics.sparse import components
from assay.engine.numerics.structures import (
    fields_of,
    map_values,
    parts_of,
    tensors_in,
    with_fields,
)


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


def length_of(batches: Iterable[Any], limit: int | None = None) -> int | None:
    """Return the number of batches, at most `limit`; None where it is unknown."""
    try:
        length = len(batches) if isinstance(batches, Sized) else None
    except TypeError:  # a DataLoader of a stream has the method, but no length
        length = None
    return length if length is None or limit is None else min(length, limit)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with every tensor on `device`; an object with a method `to` moves itself."""
    if not isinstance(batch, Tensor) and callable(move := getattr(batch, "to", None)):
        return move(device)
    return map_values(
        batch, lambda tensor: tensor if tensor.is_meta else tensor.to(device, non_blocking=True)
    )


def pin(batch: Any) -> Any:
    """Return the batch in page-locked memory, which is copied to a GPU asynchronously."""
    return map_values(batch, Tensor.pin_memory)


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


def digest_sample(sample: Any) -> int:
    """32 bits that say whether two samples are the same; what is no value counts by its type."""
    value = 0
    for name, leaf in leaves(sample):
        value = crc32(name.encode(), value)
        if isinstance(leaf, Tensor):
            value = crc32(f"{leaf.dtype}{tuple(leaf.shape)}".encode(), value)
            for part in components(leaf.detach()):
                value = crc32(as_bytes(part), value)
        elif isinstance(leaf, np.ndarray):
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


def collate(samples: Sequence[Any]) -> Any:
    """Return one batch of like samples: tensors are stacked, structures keep their type.

    Tensors, arrays, numbers, strings, mappings, (named) tuples, lists, dataclasses and
    `types.SimpleNamespace`; and what stacks itself by a class method `stack`, as an `Instance`
    does.
    """
    first = samples[0]
    if callable(stack := getattr(type(first), "stack", None)):
        return stack(samples)
    fields = fields_of(first)
    if fields is not None:
        batched = {name: collate([getattr(sample, name) for sample in samples]) for name in fields}
        return with_fields(first, batched)
    if isinstance(first, Mapping) and _has_fields(first.values()):
        return {name: collate([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple | list) and _has_fields(first):
        parts = [collate(part) for part in zip(*samples, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return default_collate(list(samples))


def refuse_none(samples: Sequence[Any], names: Sequence[str], error: Exception) -> None:
    """Raise InputError from `error` for a sample that is None or holds one: no batch can."""
    for name, sample in zip(names, samples, strict=True):
        path = _path_of_none(sample)
        if path is not None:
            inside = "".join(f"[{key!r}]" for key in path)
            what = f"{name} has None at {inside}" if path else f"{name} is None"
            raise InputError(
                f"{what}: no batch can hold it.",
                fix="Let the data set give something else, or give a collate that leaves it out.",
            ) from error


def _path_of_none(sample: Any) -> tuple[Any, ...] | None:
    """Return the keys and places that lead to the first None in a sample; None without one."""
    if sample is None:
        return ()
    for key, part in parts_of(sample) or ():
        path = _path_of_none(part)
        if path is not None:
            return (key, *path)
    return None


def _has_fields(values: Iterable[Any]) -> bool:
    """Return True if one of the values is a dataclass or a namespace."""
    return any(fields_of(value) is not None for value in values)
