"""Values of the few fake tensors that have some: what follows from the batch and from constants.

Labels, token ids, lengths, masks and positions are small, and they decide about shapes and ranges.
They are computed for real beside their fake tensors, and indices among them are checked against
what they index. What depends on a weight has no value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from assay.engine.numerics import private_torch
from assay.engine.numerics.structures import map_values, tensors_in
from assay.engine.rehearse.fake import Fakes, is_device_mismatch, is_fake, is_unfakeable

MOST_WHOLE = 2**22
"""Integers of a tensor up to which its values are kept."""

MOST_REAL = 2**14
"""The same of floating-point numbers."""

HOST = "meta"
"""Stands for the host where the CPU stands for an accelerator: see `Trial.look_at_devices`."""

_VALUE = "_assay_value"
_OP = torch.ops.aten

_UNWRITTEN = frozenset(
    {
        _OP.empty.memory_format,
        _OP.empty_like.default,
        _OP.empty_strided.default,
        _OP.new_empty.default,
        _OP.new_empty_strided.default,
    }
)
"""Operations that give memory which nobody has written yet."""


def is_small(tensor: Tensor) -> bool:
    """Return True if the values of a tensor of this size and kind are kept."""
    most = MOST_REAL if tensor.is_floating_point() or tensor.is_complex() else MOST_WHOLE
    return tensor.numel() <= most and tensor.layout == torch.strided


class Values:
    """Runs operations on fake tensors, and on values where all inputs have some.

    `guessed` counts the numbers that assay itself read and that have no value, such as the loss: it
    was given one with which training goes on.
    """

    def __init__(self, fakes: Fakes) -> None:
        self.fakes = fakes
        self.guessed = 0
        self.keeps_unwritten = True
        """False where new memory is filled by other ranks: its values are then never known."""
        self._stale: dict[int, Any] = {}

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the real tensor that a fake one stands for, or None if its values are unknown."""
        value = getattr(tensor, _VALUE, None) if is_fake(tensor) else tensor
        if value is None or value.is_meta or not is_small(value):
            return None
        if self._stale and id(value.untyped_storage()) in self._stale:
            return None
        return value

    def give(self, real: Tensor) -> Any:
        """Return a fake tensor for a real one, with its values if it is small.

        One on the device `meta` stands for a tensor whose values nobody knows.
        """
        if real.is_meta:
            with self.fakes.use():
                unknown = torch.empty(real.shape, dtype=real.dtype, device="cpu")
            vars(unknown).pop(_VALUE, None)  # what lies in new memory, if an observer is there
            return unknown
        fake = self.fakes.of(real)
        if is_small(real):
            setattr(fake, _VALUE, real)
        return fake

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation; raises what torch raises, also for what fake tensors cannot do."""
        inputs = list(tensors_in((args, kwargs)))
        if func is _OP._local_scalar_dense.default:
            return self._number(func, inputs[0])
        if func in _UNWRITTEN and not self.keeps_unwritten:
            return func(*args, **kwargs)
        if not inputs:
            return self._factory(func, args, kwargs)
        if any(self.of(tensor) is None for tensor in inputs):
            return self._fake(func, args, kwargs)
        return self._both(func, args, kwargs)

    def _number(self, func: Any, tensor: Tensor) -> Any:
        value = self.of(tensor)
        if value is not None:
            return self._real(func, (tensor,), {})
        if not _asked_by_assay():
            return func(tensor)  # raises
        self.guessed += 1
        if tensor.dtype == torch.bool:
            return True  # all is finite
        if not tensor.is_floating_point():
            return 0  # a count of what is wrong
        return 1.0 if not tensor.dim() else 0.0  # a loss or a weight; a count of what is not finite

    def _factory(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        fake = func(*args, **kwargs)
        if isinstance(fake, Tensor) and is_small(fake):
            setattr(fake, _VALUE, self._real(func, args, kwargs))
        return fake

    def _both(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation of which all inputs have values."""
        if not any(map(is_fake, tensors_in((args, kwargs)))):
            real = self._real(func, args, kwargs)
            return real if private_torch.schema_of(func).is_mutable else map_values(real, self.give)
        try:
            fake = func(*args, **kwargs)
        except Exception as error:
            if not is_unfakeable(error):
                raise
            return map_values(self._real(func, args, kwargs), self.give)
        outputs = list(tensors_in(fake))
        if not outputs or not all(is_small(each) for each in outputs):
            self._forget_written(func, args, kwargs)
            return fake
        found = list(tensors_in(self._real(func, args, kwargs)))
        if len(found) == len(outputs):  # a kernel may leave out what only a backward pass needs
            for each, value in zip(outputs, found, strict=True):
                setattr(each, _VALUE, value)
        return fake

    def _real(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        on_cpu = dict(kwargs)
        if "device" in on_cpu:
            on_cpu["device"] = torch.device("cpu")
        with self.fakes.real(), torch.no_grad():
            return func(*map_values(args, self.of), **map_values(on_cpu, self.of))

    def _fake(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation of which an input has no values."""
        self._forget_written(func, args, kwargs)
        if func is _OP.index.Tensor:
            args = (args[0], self._plain_indices(args[0], args[1]))
        elif func is _OP.masked_select.default and self.of(args[1]) is not None:
            return _OP.index.Tensor(args[0], self._plain_indices(args[0], [args[1]]))
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not is_device_mismatch(error):
                raise
            return func(*map_values(args, self._free), **map_values(dict(kwargs), self._free))

    def _free(self, tensor: Tensor) -> Any:
        """Return a single number on the host as one that goes with tensors of any device."""
        if tensor.dim() or tensor.device.type != HOST:
            return tensor
        return torch.empty((), dtype=tensor.dtype, device="cpu")

    def _plain_indices(self, _: Tensor, indices: Sequence[Tensor | None]) -> list[Any]:
        """Replace masks with known values by the indices they select: the shape is then known."""
        found: list[Any] = []
        for index in indices:
            mask = None if index is None or index.dtype != torch.bool else self.of(index)
            if mask is None:
                found.append(index)
            else:
                with self.fakes.real():
                    columns = mask.nonzero(as_tuple=True)
                found += [self.give(column) for column in columns]
        return found

    def _forget_written(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Drop the values of tensors that the operation writes into."""
        for tensor in private_torch.written_by(func, args, kwargs):
            self._forget(tensor)

    def _forget(self, tensor: Tensor) -> None:
        value = self.of(tensor)
        if value is not None:  # its views have the same storage
            storage = value.untyped_storage()
            self._stale[id(storage)] = storage


def _asked_by_assay() -> bool:
    """Return True if a number is read by code of this package: not by the user's, nor for it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "assay.engine.rehearse.")):
            return bool(name.startswith("assay."))
        frame = frame.f_back
    return False


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
