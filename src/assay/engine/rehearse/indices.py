"""Indices against what they index: token ids against an embedding, labels against classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.engine.rehearse.known_values import Values

_OP = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Bound:
    """An index has to be at least 0 and below `size`, or `allowed`. `what` it counts is plural."""

    size: int
    what: str
    allowed: int | None = None

    def broken_by(self, values: Tensor) -> str:
        """Return what is wrong with `values`; "" for nothing."""
        if not values.numel():
            return ""
        wrong = (values < 0) | (values >= self.size)
        if self.allowed is not None:
            wrong &= values != self.allowed
        if not bool(wrong.any()):
            return ""
        found = values[wrong]
        worst = int(found.max()) if int(found.max()) >= self.size else int(found.min())
        return f"{worst} is out of range for {self.size} {self.what}: 0 to {self.size - 1}"


@dataclass(frozen=True, slots=True)
class Checked:
    """A bound that values of the batch were checked against."""

    bound: Bound
    values: Tensor


Bounded = tuple[Tensor, Bound]
"""An index of an operation, and what it has to be."""


def _embedding(args: Sequence[Any]) -> Bounded:
    return args[1], Bound(args[0].shape[0], "rows of the embedding")


def _classes(args: Sequence[Any]) -> Bounded:
    scores = args[0]
    ignored = args[4] if len(args) > 4 else -100
    return args[1], Bound(scores.shape[1 if scores.dim() > 1 else 0], "classes", ignored)


def _along(args: Sequence[Any]) -> Bounded:
    tensor = args[0]
    dim = args[1]
    size = tensor.shape[dim] if tensor.dim() else 1
    return args[2], Bound(size, f"entries of dim {dim}")


_BOUNDS: dict[Any, Callable[[Sequence[Any]], Bounded]] = {
    _OP.embedding.default: _embedding,
    _OP.nll_loss_forward.default: _classes,
    _OP.nll_loss2d_forward.default: _classes,
    _OP.gather.default: _along,
    _OP.index_select.default: _along,
    _OP.scatter.src: _along,
    _OP.scatter.value: _along,
}
"""Operations that fail for an index out of range; on a GPU they end the process."""


class Indices:
    """Checks indices whose values are known. `checked` has those of the first step."""

    def __init__(self, values: Values | None) -> None:
        self._values = values
        self.is_keeping = True
        self.checked: list[Checked] = []

    def check(self, func: Any, args: Sequence[Any]) -> None:
        """Raise IndexError for an index out of range."""
        bound_of = _BOUNDS.get(func)
        if bound_of is None:
            return
        index, bound = bound_of(args)
        known = index if self._values is None else self._values.of(index)
        if known is None:
            return
        if self.is_keeping:
            self.checked.append(Checked(bound, known))
        with self._values.fakes.real() if self._values is not None else nullcontext():
            wrong = bound.broken_by(known)
        if wrong:
            raise IndexError(wrong)

    def bounds_of(self, leaves: Iterable[Tensor]) -> list[tuple[int, Bound]]:
        """Return the bounds on values that lie in one of these tensors, each with its number."""
        numbers = {id(leaf.untyped_storage()): number for number, leaf in enumerate(leaves)}
        found = {}
        for each in self.checked:
            number = numbers.get(id(each.values.untyped_storage()))
            if number is not None:
                found[number, each.bound.size, each.bound.what] = each.bound
        return [(key[0], bound) for key, bound in found.items()]
