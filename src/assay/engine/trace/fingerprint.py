"""Fingerprints of tensors: equal for equal bits, taken where the tensor is."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import torch
from torch import Tensor

from assay.engine.checkpoint.codec import as_bytes
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.sparse import components

_BLOCK = 1 << 22
"""Words that are folded at once: their temporaries take 8 bytes each, a few times over."""

_GOLDEN = -0x61C8864680B583EB
_WORD = 0xFFFFFFFF


def algorithm_of(device: torch.device) -> str:
    """Return the fingerprint algorithm of a device; digests of different ones do not compare."""
    return "crc32" if device.type == "cpu" else "fold64"


def fingerprint(tensor: Tensor) -> int | Tensor:
    """Return the fingerprint of a tensor; where reading it would wait for a device, a number there.

    The fingerprint covers the part of the tensor that this rank owns.
    """
    mark: int | Tensor = 0
    for part in components(local_tensor(tensor)):
        if part.device.type == "cpu":
            mark = crc32(as_bytes(part), mark if isinstance(mark, int) else 0)
        else:
            mark = mark * 31 + fold(part)
    return mark


def fold(tensor: Tensor) -> Tensor:
    """Return a sum over the words of a tensor, each mixed and weighted by its place, modulo 2**64.

    The order in which a device adds does not change a sum of integers. A bare xor would miss every
    permutation and every pair of equal changes.
    """
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.numel() % 4:
        flat = torch.cat([flat, flat.new_zeros(4 - flat.numel() % 4)])
    words = flat.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, words.numel(), _BLOCK):
        block = words[first : first + _BLOCK].to(torch.int64) & _WORD
        places = torch.arange(first + 1, first + 1 + block.numel(), device=tensor.device)
        total += (_mix(block) * _mix(places * _GOLDEN).bitwise_or_(1)).sum()
    return total


def _mix(words: Tensor) -> Tensor:
    """Let every bit of a word change many others, so that no two equal changes cancel."""
    words = (words ^ (words >> 16)) * 0x7FEB352D
    return words ^ (words >> 15)


def read_fingerprints(marks: Sequence[int | Tensor]) -> list[int]:
    """Return fingerprints as unsigned numbers; a device is waited for once."""
    there = [mark for mark in marks if isinstance(mark, Tensor)]
    fetched = iter(torch.stack(there).tolist() if there else ())
    return [(next(fetched) if isinstance(mark, Tensor) else mark) % 2**64 for mark in marks]
