"""Tensors within structures: batches, outputs of modules, arguments of operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

TensorPath = tuple[Any, ...]
"""Keys, indices and names of fields, from the outermost structure to a tensor in it."""


def tensors_in(found: Any) -> Iterator[Tensor]:
    """Yield the tensors in a structure: a batch, an output, the arguments of an operation."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for each in found:
            yield from tensors_in(each)
    elif isinstance(found, Mapping):
        for each in found.values():
            yield from tensors_in(each)
    else:
        for name in fields_of(found) or ():
            yield from tensors_in(getattr(found, name))


def tensors_by_path(
    found: Any, path: TensorPath = (), *, in_objects: bool = False
) -> Iterator[tuple[TensorPath, Tensor]]:
    """Yield the tensors of `tensors_in`, each with the keys and indices that lead to it.

    With `in_objects` also the tensors in the attributes of objects of other classes.

    >>> import torch
    >>> [path for path, _ in tensors_by_path(("a", {"y": torch.ones(2)}))]
    [(1, 'y')]
    """
    if isinstance(found, Tensor):
        yield path, found
    elif isinstance(found, list | tuple):
        for place, each in enumerate(found):
            yield from tensors_by_path(each, (*path, place), in_objects=in_objects)
    elif isinstance(found, Mapping):
        for key, each in found.items():
            yield from tensors_by_path(each, (*path, key), in_objects=in_objects)
    else:
        names = fields_of(found) or (_attributes(found) if in_objects else ())
        for name in names:
            value = getattr(found, name, None)
            yield from tensors_by_path(value, (*path, name), in_objects=in_objects)


def _attributes(thing: Any) -> list[str]:
    """Return the names of the attributes of an object, in its dictionary and in slots."""
    slots = (getattr(each, "__slots__", ()) for each in type(thing).__mro__)
    in_slots = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return [name for name in (*getattr(thing, "__dict__", ()), *in_slots) if name[:2] != "__"]


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
