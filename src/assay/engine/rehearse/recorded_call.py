"""Record of an operation that can be repeated on real zeros of the same shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.engine.rehearse.fake import is_fake
from assay.engine.rehearse.known_values import replaced

MOST_BYTES = 2**30
"""Size of the inputs up to which an operation is repeated for real."""


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
class RecordedCall:
    """An operation with the shapes that it was given, and the error that it raised, if any."""

    func: Any
    args: Any
    kwargs: Any
    error: Exception | None = None

    @classmethod
    def of(
        cls,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        error: Exception | None = None,
    ) -> RecordedCall:
        return cls(func, _described(args), _described(dict(kwargs)), error)

    @property
    def size_bytes(self) -> int:
        """Size of all inputs together."""
        found: list[Described] = []
        _each(self.args, found.append)
        _each(self.kwargs, found.append)
        return sum(each.size_bytes for each in found)

    def error_on_real(self) -> Exception | None:
        """Repeat it on real zeros on the CPU; return what it raises there.

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
