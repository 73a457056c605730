"""Search for the largest batch that fits into a given memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.engine.numerics.structures import map_values
from assay.engine.rehearse.known_values import MOST_WHOLE
from assay.formats.rehearsal import Largest

USABLE = 0.9
"""Share of a device's memory that a step may use. The rest is for the allocator's fragments, for
libraries, and for the error of the estimate."""

_TRIES = 7
_MOST_SAMPLES = 2**20


def resize_batch(batch: Any, samples: int, wanted: int) -> Any:
    """Return a batch of `wanted` samples in place of `samples`, with the shapes of this one.

    Small tensors repeat their rows; large ones have no values (device `meta`). A tensor whose first
    dim is not `samples` stays as it is.
    """

    def resize(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != samples:
            return tensor
        shape = (wanted, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_meta or math.prod(shape) > MOST_WHOLE:
            return torch.empty(shape, dtype=tensor.dtype, device="meta")
        return tensor.index_select(0, torch.arange(wanted) % samples)

    return map_values(batch, resize)


def largest(
    peak_of: Callable[[int], int], samples: int, peak_bytes: int, fixed_bytes: int, usable: int
) -> Largest:
    """Return the largest number of samples found whose peak fits into `usable` bytes.

    `peak_of` tries one; `samples` have `peak_bytes`, of which `fixed_bytes` belong to no sample.
    The peak grows in a line with the samples, until another place becomes the peak. So each guess
    is where the line through the last two points, one that fits and one that does not if there are
    both, meets the limit; and it is tried.
    """
    if fixed_bytes >= usable:
        return Largest(samples=0, peak_bytes=fixed_bytes, usable_bytes=usable)
    fits = (0, fixed_bytes)
    bursts = (_MOST_SAMPLES + 1, 0)
    one = fits
    other = (samples, peak_bytes)
    for _ in range(_TRIES):
        if other[1] <= usable:
            fits = max(fits, other)
        else:
            bursts = min(bursts, other)
        if fits[0] + 1 >= bursts[0]:
            break
        if fits[0] and bursts[1]:
            one, other = fits, bursts
        slope = (other[1] - one[1]) / (other[0] - one[0])
        guess = int(one[0] + (usable - one[1]) / slope) if slope > 0 else bursts[0] - 1
        if fits == other and guess == fits[0] and fits[1] + slope > usable and one[0]:
            break  # the line through two that were tried says that one more does not fit
        guess = max(fits[0] + 1, min(guess, bursts[0] - 1))
        one = other
        other = (guess, peak_of(guess))
    if other[1] <= usable:
        fits = max(fits, other)
    return Largest(samples=fits[0], peak_bytes=fits[1], usable_bytes=usable)
