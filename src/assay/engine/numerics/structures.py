"""Tensors within structures: batches, outputs of modules, arguments of operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")

TensorPath = tuple[Any, ...]
"""Keys, indices and names of fields, from the outermost structure to a tensor in it."""


def parts_of(found: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts of a structure, each with its key, index or name; None for anything else.

    Structures are mappings, lists, tuples, named tuples, dataclasses, namespaces and what maps its
    own values, as an `Instance` does. All that goes through batches, outputs and arguments asks
    here what is one.

    >>> list(parts_of({"x": 1, "y": [2]}))
    [('x', 1), ('y', [2])]
    """
    if isinstance(found, Mapping):
        return found.items()
    if isinstance(found, list | tuple):
        return zip(getattr(found, "_fields", None) or range(len(found)), found, strict=True)
    if callable(getattr(found, "map_values", None)) and callable(getattr(found, "keys", None)):
        return [(name, found[name]) for name in found.keys()]  # noqa: SIM118 - it is not iterated
    names = fields_of(found)
    return None if names is None else [(name, getattr(found, name)) for name in names]


def values_in(found: Any, kind: type[T]) -> Iterator[T]:
    """Yield the values of a kind in a structure."""
    if isinstance(found, kind):
        yield found
        return
    for _, each in parts_of(found) or ():
        yield from values_in(each, kind)


def tensors_in(found: Any) -> Iterator[Tensor]:
    """Yield the tensors in a structure: a batch, an output, the arguments of an operation."""
    return values_in(found, Tensor)


def map_values(found: Any, function: Callable[[Any], Any], kind: type = Tensor) -> Any:
    """Return a structure with `function` applied to each value of a kind; structures keep theirs.

    What has a method `map_values` of its own, as an `Instance` has, does it itself.

    >>> import torch
    >>> map_values([torch.ones(2), {"y": torch.zeros(1)}, "a"], torch.Tensor.sum)
    [tensor(2.), {'y': tensor(0.)}, 'a']
    """
    if isinstance(found, kind):
        return function(found)
    if callable(own := getattr(found, "map_values", None)):
        return own(function, kind)
    if isinstance(found, Mapping):
        return {key: map_values(value, function, kind) for key, value in found.items()}
    if isinstance(found, tuple) and hasattr(found, "_fields"):
        return type(found)(*(map_values(value, function, kind) for value in found))
    if isinstance(found, list | tuple):
        return type(found)(map_values(value, function, kind) for value in found)
    fields = fields_of(found)
    if fields is None:
        return found
    return with_fields(
        found, {name: map_values(getattr(found, name), function, kind) for name in fields}
    )


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
        return
    parts = parts_of(found)
    if parts is None:
        names = _attributes(found) if in_objects else ()
        parts = ((name, getattr(found, name, None)) for name in names)
    is_tuple = isinstance(found, tuple)
    for place, (key, each) in enumerate(parts):
        inner = (*path, place if is_tuple else key)
        yield from tensors_by_path(each, inner, in_objects=in_objects)


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


def table_like(table: Mapping[Any, Any], items: Any) -> Any:
    """Return a table of the type of another, with the versions that torch has put on a state."""
    other = type(table)(items)  # type: ignore[call-arg]
    if hasattr(table, "_metadata"):
        other._metadata = table._metadata  # type: ignore[attr-defined]
    return other


def with_fields(thing: Any, values: Mapping[str, Any]) -> Any:
    """Another of the kind of `thing`, with these fields."""
    return type(thing)(**values)
