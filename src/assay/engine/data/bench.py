"""Benchmark of loading: batches per second by number of workers, with and without pinned memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from assay.engine.data.audit import speed
from assay.engine.data.loader import Loader
from assay.engine.numerics.structures import mapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Measured speed of one setting.

    `pinned` is None without CUDA; `batch_bytes` is the memory that pinning a batch locks.
    """

    workers: int | None
    pinned: bool | None
    first_batch_s: float
    batches_per_s: float
    batch_bytes: int


def bench(data: Iterable[Any], *, seconds: float, workers: Sequence[int] = ()) -> list[Speed]:
    """Measure each number of workers for about `seconds`; with CUDA also with pinned memory."""
    if not isinstance(data, Loader):
        first, rate = speed(data, seconds=seconds)
        return [
            Speed(
                workers=None,
                pinned=None,
                first_batch_s=first,
                batches_per_s=rate,
                batch_bytes=_size(data),
            )
        ]
    found = []
    for count in workers or (data.workers,):
        for pinned in (False, True) if torch.cuda.is_available() else (None,):
            loader = data.changed(workers=count, pin_memory=bool(pinned))
            try:
                first, rate = speed((window for window in loader.windows(0, 0)), seconds=seconds)
            finally:
                loader.close()
            size = _size(
                batch
                for window in data.changed(workers=0).windows(0, 0)
                for batch in window.batches
            )
            found.append(
                Speed(
                    workers=count,
                    pinned=pinned,
                    first_batch_s=first,
                    batches_per_s=rate,
                    batch_bytes=size,
                )
            )
    return found


def _size(batches: Iterable[Any]) -> int:
    total = 0

    def add(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    mapped(next(iter(batches), None), add)
    return total
