"""Operations repeated on real zeros: of mixed dtypes, and those that failed on fake tensors.

Torch registers shape functions for fake tensors, and many of them leave the dtypes unchecked:
`mm` of a float32 and a float64 matrix gives a float32 one. A run would end there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.engine.numerics.private_torch import overload_packet
from assay.engine.numerics.structures import map_values, tensors_in, values_in
from assay.engine.rehearse.fake import Fakes, is_fake

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
                args, kwargs = map_values((self.args, self.kwargs), Described.make, Described)
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

    return map_values(found, describe)


_UNCHECKED_NAMES = (
    "_batch_norm_with_update",
    "_cdist_forward",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_native_batch_norm_legit",
    "_softmax_backward_data",
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "binary_cross_entropy",
    "bmm",
    "complex",
    "convolution",
    "dot",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "heaviside",
    "index_add",
    "index_add_",
    "index_copy",
    "index_copy_",
    "index_put",
    "index_put_",
    "index_reduce",
    "index_reduce_",
    "linalg_cross",
    "mm",
    "mv",
    "native_batch_norm",
    "native_group_norm",
    "native_layer_norm",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "polar",
    "put",
    "put_",
)
"""Found with torch 2.13: each operation of `torch.testing`'s list of samples was called with one
float64 or bfloat16 input among float32 ones, on fake and on real tensors."""

_UNCHECKED = frozenset(
    getattr(torch.ops.aten, name) for name in _UNCHECKED_NAMES if hasattr(torch.ops.aten, name)
)


class MixedDtypes:
    """Repeats an operation of mixed dtypes on real zeros, once for each combination of dtypes."""

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes
        self._works: set[tuple[Any, ...]] = set()

    def check(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise what the real kernel raises for these dtypes, if the fake one accepts them."""
        if overload_packet(func) not in _UNCHECKED:
            return
        dtypes = [tensor.dtype for tensor in tensors_in((args, kwargs))]
        if len({each for each in dtypes if each.is_floating_point or each.is_complex}) < 2:
            return
        combination = (func, *dtypes)
        if combination in self._works:
            return
        call = RecordedCall.of(func, args, kwargs)
        if call.size_bytes > MOST_BYTES:
            return
        with self._fakes.real():
            error = call.error_on_real()
        if error is not None:
            raise error
        self._works.add(combination)
