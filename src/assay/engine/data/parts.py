"""Named parts of a batch or of a model's output: keys, fields and places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from assay.core.errors import InputError, did_you_mean
from assay.engine.data.instance import Instance
from assay.engine.numerics.structures import fields_of

Part = str | int
"""Name of a field of a batch, or its place."""


def has_parts(batch: Any) -> bool:
    """Return True for anything that holds parts by name or by place."""
    return isinstance(batch, Mapping | list | tuple | Instance) or fields_of(batch) is not None


def names_in(batch: Any) -> tuple[str, ...]:
    """Return the names of the parts; () for a tensor, and for a tuple without names."""
    if isinstance(batch, Tensor):
        return ()
    if isinstance(batch, Mapping | Instance):
        return tuple(str(name) for name in batch.keys())  # noqa: SIM118 - an Instance cannot be iterated
    return tuple(getattr(batch, "_fields", None) or fields_of(batch) or ())


def part_of(batch: Any, name: Part) -> Any:
    """Return a part of a batch; InputError names those that there are."""
    try:
        if isinstance(batch, Mapping | Instance) or (
            isinstance(name, int) and isinstance(batch, list | tuple)
        ):
            return batch[name]  # type: ignore[index]
        return getattr(batch, str(name))
    except (KeyError, IndexError, AttributeError):
        raise InputError(
            f"A batch has no {name!r}; it is {describe_parts(batch)}.",
            where="[process] input, target",
            fix=did_you_mean(str(name), names_in(batch)) or "Name a part that it has.",
        ) from None


def describe_parts(batch: Any) -> str:
    """Return the kind of a batch with its names, as "a mapping of image, label"."""
    names = names_in(batch)
    if isinstance(batch, Mapping):
        return f"a mapping of {', '.join(names)}" if names else "an empty mapping"
    if isinstance(batch, list | tuple) and not names:
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}" + (f" of {', '.join(names)}" if names else "")
