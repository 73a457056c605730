"""Shapes and dtypes of the tensors that pass from stage to stage of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from assay.core.errors import InputError
from assay.engine.numerics.structures import mapped

Shapes = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Of the tensors of a batch, or of what one stage gives to the next."""


def shapes_of(found: Any) -> Shapes:
    """Return shape and dtype of each tensor in a batch, or in what one stage gives to the next."""
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = []

    def look(tensor: Tensor) -> Tensor:
        shapes.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    mapped(found, look)
    return tuple(shapes)


def bytes_of(shapes: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Return the size of tensors of these shapes."""
    return sum(math.prod(size) * dtype.itemsize for size, dtype in shapes)


def scaled(shapes: Shapes, samples: int, wanted: int) -> Shapes:
    """Return shapes for `wanted` in place of `samples`, which are the first dim where it is equal."""
    return tuple(
        ((wanted, *size[1:]) if size[:1] == (samples,) else size, dtype) for size, dtype in shapes
    )


def zeros_like_shape(
    shape: tuple[tuple[int, ...], torch.dtype], is_training: bool, device: Any
) -> Tensor:
    size, dtype = shape
    return torch.zeros(
        size, dtype=dtype, device=device, requires_grad=is_training and dtype.is_floating_point
    )


def shape_only(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def sendable(found: Any, name: str) -> Any:
    """Return contiguous tensors, one or a tuple; InputError for values that no stage can send."""
    several = found if isinstance(found, tuple) else (found,)
    if not several or not all(isinstance(each, Tensor) for each in several):
        kinds = ", ".join(type(each).__name__ for each in several)
        raise InputError(
            f"{name} gives {kinds or 'nothing'}; from stage to stage of a pipeline go"
            " tensors only.",
            fix=(
                "Split the model elsewhere ([parallel] split), or let this part return one tensor"
                " or a tuple of them."
            ),
        )
    sent = tuple(each.contiguous() for each in several)
    return sent if isinstance(found, tuple) else sent[0]
