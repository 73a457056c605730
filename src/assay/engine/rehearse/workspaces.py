"""Memory that a library takes, and that no fake tensor shows.

oneDNN computes convolutions on a CPU in a layout of its own, with channels in blocks of 8 or 16.
Tensors in torch's layout are copied into it and the result is copied back: the copies live as long
as the operation. Tried with torch 2.13; cuDNN's workspaces depend on the card, and are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_BLOCK = 8
"""Fewer channels than this, as those of an image, are read where they are."""

_SCRATCH = 5
"""Numbers of each hidden one that the backward pass of an LSTM needs: gates and its input."""

_BLOCKED = (torch.float32, torch.bfloat16, torch.float16)


def workspace_bytes(func: Any, args: Sequence[Any], out: Any) -> int:
    """Return the bytes that an operation on a CPU takes besides its tensors while it is under way.

    >>> x, weight = torch.empty(2, 8, 4, 4), torch.empty(16, 8, 1, 1)
    >>> out = torch.empty(2, 16, 4, 4)
    >>> workspace_bytes(torch.ops.aten.convolution.default, (x, weight), out) // 4
    896
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0
    if func is torch.ops.aten.convolution.default:
        return _copied(args[0]) + _copied(args[1]) + _copied(out)
    if func is torch.ops.aten.convolution_backward.default:
        gradient, given, weight = args[:3]
        # Gradients of the input and of the weight are computed one after the other.
        return _copied(gradient) + _copied(given) + _copied(weight)
    if func is torch.ops.aten.mkldnn_rnn_layer_backward.default:
        steps, samples = args[0].shape[:2]
        hidden = args[5].shape[-1]
        return _SCRATCH * steps * samples * hidden * args[0].element_size()  # type: ignore[no-any-return]
    return 0


def kept_workspace(func: Any, args: Sequence[Any], out: Any) -> tuple[Tensor, int] | None:
    """Return the tensor in which an LSTM keeps what its backward pass needs, and its real bytes.

    A fake one is empty, because only oneDNN knows its size: gates and hidden states of every step,
    and states with their gradients for the layer and the one below. None for anything else. Within
    1 % of the size with torch 2.13; 16 KiB more of a small layer.
    """
    if func is not torch.ops.aten.mkldnn_rnn_layer.default or out[3].nbytes:
        return None
    if not args[15]:  # in evaluation there is none
        return None
    steps, samples, width = args[0].shape
    hidden = args[10]
    numbers = 5 * steps * hidden + 10 * (steps + 1) * max(width, hidden)
    return out[3], numbers * samples * args[0].element_size()


def _copied(tensor: Tensor) -> int:
    """Return the bytes of a tensor in oneDNN's layout, 0 where it is read as it is."""
    is_plain = tensor.dim() > 2 and tensor.is_contiguous()
    if not is_plain or tensor.dtype not in _BLOCKED or tensor.shape[1] < _BLOCK:
        return 0
    return tensor.numel() * tensor.element_size()
