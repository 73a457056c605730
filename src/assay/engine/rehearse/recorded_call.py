"""Record of an operation that can be repeated on real zeros of the same shapes and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.engine.numerics.structures import mapped, values_in
from assay.engine.rehearse.fake import is_fake

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

    def make(self) -> Tensor:
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
        return cls(func, _describe(args), _describe(dict(kwargs)), error)

    @property
    def size_bytes(self) -> int:
        """Size of all inputs together."""
        return sum(each.size_bytes for each in values_in((self.args, self.kwargs), Described))

    def error_on_real(self) -> Exception | None:
        """Repeat it on real zeros on the CPU; return what it raises there.

        None if it works, or is not there for a CPU.
        """
        try:
            with torch.no_grad():
                args, kwargs = mapped((self.args, self.kwargs), Described.make, Described)
                if "device" in kwargs:
                    kwargs["device"] = torch.device("cpu")
                self.func(*args, **kwargs)
        except NotImplementedError:
            return None
        except Exception as error:  # whatever it is: the operation cannot be done
            return error
        return None


def _describe(found: Any) -> Any:
    def describe(tensor: Tensor) -> Any:
        is_plain = tensor.layout == torch.strided and (is_fake(tensor) or type(tensor) is Tensor)
        if not is_plain and not isinstance(tensor, torch.nn.Parameter):
            return tensor
        return Described(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    return mapped(found, describe)
