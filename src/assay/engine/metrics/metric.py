"""Metric protocol, and the adapter for metrics of other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import InputError


class Metric(Protocol):
    """One number (or several, by name) about a whole split.

    What is counted stays on the device where it was made until `value` is asked for: nothing waits
    for a device within a split. Those of assay also `merge(other)`: what another one of the same
    settings has counted is added.
    """

    def reset(self) -> None: ...

    def update(self, output: Any) -> None:
        """Take in what the process returned for one batch."""
        ...

    def value(self) -> float | Mapping[str, Any]:
        """Over everything since `reset`; nan when there was nothing. A part may be a `Matrix`."""
        ...


@runtime_checkable
class Computing(Protocol):
    """A metric as torchmetrics and others have them: it takes tensors, and computes at the end."""

    def update(self, *given: Any) -> Any: ...
    def compute(self) -> Any: ...
    def reset(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """Counts or shares by row and column, for a table and a picture of the record.

    `values` has two or more dimensions; more are flattened to rows along the last. `names` are
    those of the columns, and of the rows of a square matrix.
    """

    values: Any
    names: Sequence[str] = ()

    def rows(self) -> tuple[list[str], list[list[Any]]]:
        """Return the heads of the columns, and the rows; those of a named matrix begin with it."""
        width = self.values.shape[-1]
        rows = self.values.reshape(-1, width).tolist()
        if not self.names:
            return [str(column) for column in range(width)], rows
        named = [[name, *row] for name, row in zip(self.names, rows, strict=True)]
        return ["true", *self.names], named

    def picture(self) -> np.ndarray:
        """Return the shares of each row from 0, white, to 1, black: height x width."""
        counts = np.asarray(self.values.tolist(), np.float64).reshape(-1, self.values.shape[-1])
        totals = np.abs(counts).sum(axis=1, keepdims=True)
        shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
        return np.kron(1 - shares, np.ones((max(1, _PICTURE_SIDE // len(counts)),) * 2))


_PICTURE_SIDE = 320
"""Pixels of a side of the picture of a matrix, about."""


class Adapted:
    """Adapter of a metric with `update`, `compute` and `reset`, such as one of torchmetrics.

    `takes` names the parts of the output that `update` gets.
    """

    def __init__(self, metric: Computing, *, takes: Sequence[str] = ("pred", "target")) -> None:
        self.metric = metric
        self.takes = tuple(takes)

    def reset(self) -> None:
        self.metric.reset()

    def update(self, output: Any) -> None:
        given = take_parts(output, *self.takes, by=type(self.metric).__name__)
        device = next((value.device for value in given if isinstance(value, Tensor)), None)
        if (
            device is not None
            and getattr(self.metric, "device", device) != device
            and hasattr(self.metric, "to")
        ):
            self.metric.to(device)
        self.metric.update(*given)

    def value(self) -> float | Mapping[str, Any]:
        """Return the metric's number or matrix; several by name."""
        found = result_parts("", self.metric.compute())
        return (
            found[""]
            if found.keys() == {""}
            else {name.lstrip("/"): value for name, value in found.items()}
        )


def as_metric(name: str, metric: Any) -> Metric:
    """Return the metric, wrapped if it is of another library; InputError if it is no metric."""
    if hasattr(metric, "value") and hasattr(metric, "update") and hasattr(metric, "reset"):
        return metric  # type: ignore[no-any-return]
    if isinstance(metric, Computing):
        return Adapted(metric)
    raise InputError(
        f"metrics.{name} is a {type(metric).__name__}, which is no metric.",
        fix="A metric has reset(), update(output) and value(); one of torchmetrics is taken as"
        " it is.",
    )


def result_parts(name: str, value: Any) -> dict[str, Any]:
    """Return a metric's result by name: `acc`, `acc/part` of a mapping, `acc/0` of a vector.

    The part "" of a mapping is `acc` itself. Each part is a number or a `Matrix`, as every array of
    two or more dimensions: one of k classes is not split into k^2 metrics.

    >>> result_parts("f1", {"cat": 0.5, "dog": torch.tensor([1.0, 2.0])})
    {'f1/cat': 0.5, 'f1/dog/0': 1.0, 'f1/dog/1': 2.0}
    >>> result_parts("confusion", torch.eye(2))["confusion"].rows()
    (['0', '1'], [[1.0, 0.0], [0.0, 1.0]])
    """
    if isinstance(value, Matrix):
        return {name: value}
    if isinstance(value, Mapping):
        parts = [(f"{name}/{part}" if part else name, item) for part, item in value.items()]
    elif isinstance(value, list | tuple) or _dims(value):
        if _dims(value) > 1 and value.shape.count(1) < _dims(value) - 1:
            return {name: Matrix(value)}
        items = value.reshape(-1).tolist() if _dims(value) else value
        if len(items) == 1:
            return result_parts(name, items[0])
        parts = [(f"{name}/{place}", item) for place, item in enumerate(items)]
    else:
        return {name: float(value)}
    found: dict[str, Any] = {}
    for part, item in parts:
        found |= result_parts(part, item)
    return found


TUPLE = ("pred", "target", "loss")
"""What the places of an output mean that is a plain tuple."""


def take_parts(output: Any, *names: str, by: str) -> list[Any]:
    """Parts of what a process returned, by name; InputError says which `by` needs.

    A named tuple has its own names, any other is (pred, target, loss).
    """
    try:
        if isinstance(output, tuple):
            places = getattr(output, "_fields", TUPLE)
            return [output[places.index(name)] for name in names]
        return [output[name] for name in names]
    except (KeyError, TypeError, IndexError, ValueError):
        wanted = " and ".join(f"`{name}`" for name in names)
        example = ", ".join(f'"{name}": ...' for name in names)
        raise InputError(
            f"{by} needs {wanted} in what the process returns.",
            fix=f"Return {{{example}}} as the output of forward_step.",
        ) from None


def wide(value: Any) -> Tensor | float:
    """Return the number in double precision, without waiting for a device.

    A tensor on another device stays there (in single precision on MPS); one on the CPU is read at
    once.
    """
    if isinstance(value, Tensor) and value.device.type != "cpu":
        return value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
    return float(value)


def _dims(value: Any) -> int:
    return int(getattr(value, "ndim", 0))
