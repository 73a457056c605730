"""Samples to batches: as torch does it, and dataclasses and namespaces field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import default_collate

from assay.engine.numerics.structures import fields_of, with_fields


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


def _has_fields(values: Iterable[Any]) -> bool:
    """Return True if one of the values is a dataclass or a namespace."""
    return any(fields_of(value) is not None for value in values)
