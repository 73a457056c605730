"""Samples to batches: as torch does it, and dataclasses and namespaces field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch.utils.data import default_collate


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


def fields_of(thing: Any) -> list[str] | None:
    """Return the field names of a dataclass or a namespace; None for anything else."""
    if isinstance(thing, SimpleNamespace):
        return list(vars(thing))
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [field.name for field in dataclasses.fields(thing) if field.init]
    return None


def with_fields(thing: Any, values: Mapping[str, Any]) -> Any:
    """Another of the kind of `thing`, with these fields."""
    return type(thing)(**values)
