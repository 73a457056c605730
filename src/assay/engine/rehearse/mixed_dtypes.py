"""Operations on tensors of different dtypes that only the real kernels refuse.

Torch registers shape functions for fake tensors, and many of them leave the dtypes unchecked:
`mm` of a float32 and a float64 matrix gives a float32 one. A run would end there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from assay.engine.numerics.private_torch import overload_packet
from assay.engine.numerics.structures import tensors_in
from assay.engine.rehearse.fake import Fakes
from assay.engine.rehearse.recorded_call import MOST_BYTES, RecordedCall

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
