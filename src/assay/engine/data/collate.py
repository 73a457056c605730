"""Samples to batches: as torch does it, and dataclasses and namespaces field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import default_collate

from assay.core.errors import InputError
from assay.engine.numerics.structures import fields_of, parts_of, with_fields


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
