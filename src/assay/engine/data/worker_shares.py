"""Data sets that give one sample after the other, shared out among the workers that load them.

Torch starts each worker with a copy of the data set. One that does not ask `get_worker_info` gives
every sample as often as there are workers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import islice
from typing import Any, Literal, NoReturn
from weakref import WeakSet

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from assay.core.errors import InputError
from assay.engine.data.batches import digest_sample, leaves
from assay.engine.data.fresh_process import CopyError, call_in_copies
from assay.engine.numerics import private_torch

FIRST = 16
"""So many samples of two workers are compared."""
MOST = 10_000
"""Samples up to which those of a worker that shuffles are counted."""


_LEFT: WeakSet[DataLoader[Any]] = WeakSet()
"""Loaders whose workers were seen to give other samples each."""
_UNSURE: WeakSet[DataLoader[Any]] = WeakSet()
"""Loaders whose workers may give all samples each, in an order of their own."""


class WorkerShare(IterableDataset[Any]):
    """Data set of which each of several workers gives every so many-th sample."""

    def __init__(self, dataset: IterableDataset[Any]) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None:
            return iter(self.dataset)
        return islice(iter(self.dataset), info.id, None, info.num_workers)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class _SizedWorkerShare(WorkerShare):
    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]


def share_out(data: Any, *, split: str = "train") -> Any:
    """Return a DataLoader whose workers give each sample once; anything else as it is.

    The first samples of two workers are compared. Where they come in one order, each worker is left
    its share of them. InputError where each worker has an order of its own.
    """
    is_shared = isinstance(data, DataLoader) and data.num_workers > 1
    if not is_shared or not isinstance(data.dataset, IterableDataset):
        return data
    if isinstance(data.dataset, WorkerShare) or data in _LEFT:
        return data
    order = _order_of(data)
    if order in ("split", "unknown"):
        _LEFT.add(data)
        if order == "unknown":
            _UNSURE.add(data)
        return data
    if order == "shuffled" or type(data) is not DataLoader:
        _refuse(data, split)
    kind = _SizedWorkerShare if hasattr(data.dataset, "__len__") else WorkerShare
    shared = copy(data)
    # A DataLoader refuses another data set after it is made; the copy has not been used yet.
    vars(shared)["dataset"] = kind(data.dataset)
    return shared


def why_unknown(data: Any) -> str:
    """Return why the samples of workers may be the same, "" where they are not or it is known."""
    if not isinstance(data, DataLoader) or data not in _UNSURE:
        return ""
    return (
        f"each of {data.num_workers} workers may give all of {type(data.dataset).__name__}, in an"
        f" order of its own: it gives more than {MOST:,} samples, which were not compared"
    )


def _order_of(data: DataLoader[Any]) -> Literal["split", "alike", "shuffled", "unknown"]:
    """Return how two workers give their samples: other ones, the same, or the same shuffled.

    Of more samples than are counted that is unknown: they may be drawn without an end.
    """
    first_of = partial(_digest_first, data, seed=0)
    try:
        # Under one key, workers that are not split give the same, whatever they draw.
        first, second = call_in_copies(partial(first_of, 0), partial(first_of, 1))
        if first != second or len(first) < 2:
            return "split"
        # Augmentation leaves something of a sample as it is, which shows its place in the order.
        (other,) = call_in_copies(partial(_digest_first, data, 1, seed=1))
        places = [values for values in zip(*first, strict=True) if len(set(values)) > 1]
        if any(values in places for values in zip(*other, strict=True)):
            return "alike"
        counts = call_in_copies(partial(_count, data, 0), partial(_count, data, None))
    except (CopyError, ValueError):  # samples of several shapes; the first batch raises the rest
        return "split"
    if counts[0] == counts[1] == MOST:
        return "unknown"
    if counts[0] != counts[1]:
        return "split"
    return "alike" if first == other else "shuffled"


def _digest_first(data: DataLoader[Any], number: int, *, seed: int) -> list[list[int]]:
    """Return the first samples of one worker, each a digest of each of its leaves."""
    samples = islice(_iterate(data, number, seed), FIRST)
    return [[digest_sample({name: leaf}) for name, leaf in leaves(sample)] for sample in samples]


def _count(data: DataLoader[Any], number: int | None) -> int:
    """Return how many samples a worker gives, or all of the data set, up to a limit."""
    return sum(1 for _ in islice(_iterate(data, number, 0), MOST))


def _iterate(data: DataLoader[Any], number: int | None, seed: int) -> Iterator[Any]:
    """Iterate a data set as a worker of torch does; in an OS process of its own."""
    dataset: Any = data.dataset
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if number is not None:
        private_torch.set_worker_info(
            number=number, workers=data.num_workers, seed=seed, dataset=dataset
        )
        if data.worker_init_fn is not None:
            data.worker_init_fn(number)
    return iter(dataset)


def _refuse(data: DataLoader[Any], split: str) -> NoReturn:
    kind = type(data.dataset).__name__
    raise InputError(
        f"data.{split}: {kind} gives all of its samples in each of {data.num_workers} workers.",
        fix="Give a share of them in its __iter__: info = torch.utils.data.get_worker_info(), then"
        " islice(samples, info.id, None, info.num_workers), shuffled alike in all workers; or load"
        " with workers = 0.",
    )
