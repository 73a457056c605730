"""Dense components of sparse tensors, indices and values, in every layout of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.engine.numerics import private_torch

COMPRESSED = {
    torch.sparse_csr: (Tensor.crow_indices, Tensor.col_indices),
    torch.sparse_csc: (Tensor.ccol_indices, Tensor.row_indices),
    torch.sparse_bsr: (Tensor.crow_indices, Tensor.col_indices),
    torch.sparse_bsc: (Tensor.ccol_indices, Tensor.row_indices),
}
"""Layouts with a compressed and a plain dimension, and the methods that return the indices of
both."""


def is_sparse(tensor: Tensor) -> bool:
    """Return whether the layout of `tensor` keeps indices.

    `Tensor.is_sparse` knows the coordinate layout only.
    """
    return tensor.layout is torch.sparse_coo or tensor.layout in COMPRESSED


def components(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that hold the data, in the same memory: indices first, values last.

    A dense tensor is its only component. The coordinate layout is not coalesced: duplicate entries
    stay two.
    """
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return [
            private_torch.sparse_indices(tensor),
            private_torch.sparse_values(tensor),
        ]  # `indices()` refuses a tensor that is not coalesced
    if tensor.layout in COMPRESSED:
        compressed, plain = COMPRESSED[tensor.layout]
        return [compressed(tensor), plain(tensor), tensor.values()]
    return [tensor]


def assemble_sparse(
    layout: torch.layout, shape: torch.Size, parts: Sequence[Tensor], *, is_coalesced: bool = False
) -> Tensor:
    """Return the sparse tensor of `components`.

    RuntimeError when indices are out of order or outside `shape`.
    """
    if layout is torch.sparse_coo:
        indices, values = parts
        return torch.sparse_coo_tensor(
            indices, values, shape, is_coalesced=is_coalesced, check_invariants=True
        )
    compressed, plain, values = parts
    return torch.sparse_compressed_tensor(
        compressed, plain, values, shape, layout=layout, check_invariants=True
    )


def entries(tensor: Tensor) -> Tensor:
    """Return the values of a tensor, each entry once: all of a dense one."""
    if tensor.layout is torch.sparse_coo:
        return tensor.detach().coalesce().values()
    return components(tensor)[-1]
