"""Observer of every operation of a step: memory, FLOPs, indices out of range, and what failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from assay.engine.data.shapes import tensors_in
from assay.engine.numerics import private_torch
from assay.engine.numerics.private_torch import DispatchMode
from assay.engine.rehearse.fake import is_fake, is_foreign, is_propagating
from assay.engine.rehearse.indices import Indices
from assay.engine.rehearse.known_values import Values, replaced
from assay.engine.rehearse.ledger import Ledger


class StepTooLargeError(BaseException):
    """A step that is tried for real needs more memory, or takes longer, than it may.

    Not an Exception: code of the user that catches those must not go on.
    """


@dataclass(frozen=True, slots=True)
class Described:
    """Shape, strides and dtype of a tensor that is gone."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        return sum(
            (size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)
        ) * (self.dtype.itemsize)

    def made(self) -> Tensor:
        """Return zeros of this shape."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype).zero_()


@dataclass(frozen=True, slots=True)
class Failed:
    """An operation that raised `error`, with what it was given."""

    func: Any
    args: Any
    kwargs: Any
    error: Exception

    @property
    def size_bytes(self) -> int:
        """Size of all inputs together."""
        found: list[Described] = []
        _each(self.args, found.append)
        _each(self.kwargs, found.append)
        return sum(each.size_bytes for each in found)

    def on_real(self) -> Exception | None:
        """Run it again on real zeros on the CPU; return what it raises there.

        None if it works, or is not there for a CPU.
        """
        try:
            with torch.no_grad():
                self.func(*_made(self.args), **_made(self.kwargs))
        except NotImplementedError:
            return None
        except Exception as error:  # whatever it is: the operation cannot be done
            return error
        return None


class Observer(DispatchMode):  # type: ignore[no-untyped-call]
    """Watches operations, as a context manager. `values` is None where tensors are real.

    Raises StepTooLargeError beyond `limit_bytes` of memory or `limit_s` seconds since it was made.
    """

    def __init__(
        self,
        values: Values | None,
        *,
        limit_bytes: float = float("inf"),
        limit_s: float = float("inf"),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values
        self.ledger = Ledger()
        self.indices = Indices(values)
        self.flops = 0
        self.failed: Failed | None = None
        self.limit_bytes = limit_bytes
        self.is_divided = False
        """True when tensors may be parts of larger ones."""
        self._until = time.monotonic() + limit_s

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):  # a DTensor first becomes operations on its local tensors
            return NotImplemented
        kwargs = kwargs or {}
        if self.is_divided and is_propagating():
            return func(*args, **kwargs)
        try:
            self.indices.check(func, args)
            out = self._called(func, args, kwargs)
        except Exception as error:
            self.failed = Failed(func, _described(args), _described(kwargs), error)
            raise
        count = flop_registry.get(private_torch.overload_packet(func))
        if count is not None:
            self.flops += int(count(*args, **kwargs, out_val=out))
        for tensor in tensors_in(out):
            self.ledger.see(tensor)
        if self.values is None and (
            self.ledger.live_bytes > self.limit_bytes or time.monotonic() > self._until
        ):
            raise StepTooLargeError
        return out

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.values is None:
            return func(*args, **kwargs)
        return self.values.call(func, args, kwargs)

    def tensor(self, real: Tensor) -> Any:
        """Return the tensor to compute with in place of one of the batch."""
        if self.values is not None:
            made = self.values.give(real)
        elif real.is_meta:
            made = torch.zeros(real.shape, dtype=real.dtype)
        else:
            made = real
        self.ledger.use([made], "batch")
        return made

    def value_of(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor, if they are known."""
        return tensor if self.values is None else self.values.of(tensor)


def _described(found: Any) -> Any:
    def describe(tensor: Tensor) -> Any:
        is_plain = tensor.layout == torch.strided and (is_fake(tensor) or type(tensor) is Tensor)
        if not is_plain and not isinstance(tensor, torch.nn.Parameter):
            return tensor
        return Described(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    return replaced(found, describe)


def _each(found: Any, function: Callable[[Described], Any]) -> None:
    if isinstance(found, Described):
        function(found)
    elif isinstance(found, list | tuple):
        for each in found:
            _each(each, function)
    elif isinstance(found, Mapping):
        for each in found.values():
            _each(each, function)


def _made(found: Any) -> Any:
    if isinstance(found, Described):
        return found.made()
    if isinstance(found, list | tuple):
        return type(found)(_made(each) for each in found)
    if isinstance(found, Mapping):
        return {
            key: torch.device("cpu") if key == "device" else _made(each)
            for key, each in found.items()
        }
    return found
