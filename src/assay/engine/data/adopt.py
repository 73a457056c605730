"""Batch sources made from a user's data: a DataLoader of torch becomes a `Loader`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data import default_collate as torch_collate

from assay.core.errors import InputError
from assay.engine.data.batches import collate as collate_samples
from assay.engine.data.loader import Loader, is_dataset
from assay.engine.data.source import (
    Replayed,
    ReplayedStream,
    Source,
    StatefulData,
    loader_inside,
)
from assay.engine.data.workers import StartMethod


def as_source(data: Iterable[Any] | Source, *, accumulate: int = 1, seed: int = 0) -> Source:
    """Return `data` as a `Source`; a DataLoader of torch becomes a `Loader`.

    A source is returned as it is.

    InputError for samples that nobody makes batches of.
    """
    if isinstance(data, Source):
        if accumulate != 1:
            raise InputError(
                "accumulate belongs to the Loader when there is one.",
                fix="Loader(..., accumulate=...)",
            )
        return data
    refuse_samples(data, "The training data")
    if isinstance(data, DataLoader):
        loader = loader_of(data, accumulate=accumulate, seed=seed)
        if loader is not None:
            return loader
    if callable(getattr(data, "state_dict", None)) and callable(
        getattr(data, "load_state_dict", None)
    ):
        return StatefulData(data, accumulate=accumulate, seed=seed)  # type: ignore[arg-type]
    inner = loader_inside(data)
    if inner is not None and isinstance(inner.dataset, IterableDataset):
        return ReplayedStream(data, accumulate=accumulate, seed=seed)
    return Replayed(data, accumulate=accumulate, seed=seed)


def refuse_samples(data: object, who: str) -> None:
    """Raise InputError if `data` yields samples, each of which would be taken for a batch."""
    if gives_samples(data):
        raise InputError(
            f"{who}: {type(data).__name__} is an IterableDataset, which gives samples; nobody "
            "makes batches of them.",
            fix=(
                "Write batch_size = 64 in the config, or DataLoader(dataset, batch_size=64) in "
                "Python; batch_size=None if it gives whole batches."
            ),
        )


def gives_samples(data: object) -> bool:
    """Return True for an IterableDataset that yields samples.

    `WebLoader` of webdataset is an IterableDataset around a DataLoader, and yields batches.
    """
    if not isinstance(data, IterableDataset) or isinstance(data, Source):
        return False
    return loader_inside(data) is None


def batch_stream(
    dataset: IterableDataset[Any],
    *,
    batch_size: int,
    drop_last: bool = False,
    collate: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool = False,
    workers: int = 0,
    prefetch: int = 2,
    persistent_workers: bool = False,
    timeout_s: float = 0.0,
    worker_init: Callable[[int], object] | None = None,
    start_method: StartMethod | None = None,
) -> DataLoader[Any]:
    """Return a DataLoader of torch that batches an IterableDataset.

    The data set shards itself by torch's worker info.
    """
    of_workers: dict[str, Any] = {
        "prefetch_factor": prefetch,
        "persistent_workers": persistent_workers,
        "timeout": timeout_s,
        "worker_init_fn": worker_init,
        "multiprocessing_context": start_method,
    }
    return DataLoader(
        dataset,
        batch_size=batch_size,
        drop_last=drop_last,
        collate_fn=collate or getattr(dataset, "collate_fn", None) or collate_samples,
        pin_memory=pin_memory and torch.cuda.is_available(),
        num_workers=workers,
        **(of_workers if workers else {}),
    )


def loader_of(
    data: DataLoader[Any], *, accumulate: int = 1, seed: int = 0, split: str = "train"
) -> Loader | None:
    """Return a `Loader` with the data set and settings of a DataLoader of torch, or None.

    The order and the random numbers are then those of `seed`, whatever generator the DataLoader
    has. None for one that iterates in a way of its own, or over what has no items by index.
    """
    dataset: Any = data.dataset
    batches: Any = data.batch_sampler
    if not _is_plain(data) or not is_dataset(dataset) or hasattr(dataset, "set_epoch"):
        return None
    if not hasattr(batches, "__len__"):  # none at all, or one that may never end
        return None
    settings = _settings(data)
    order = _order(batches.sampler) if type(batches) is BatchSampler else None
    # A Loader drops the last window where a DataLoader drops the last batch: the same if a window
    # is a batch.
    if order is not None and (not batches.drop_last or accumulate == 1):
        settings |= {
            "micro_batch_size": batches.batch_size,
            "drop_last": batches.drop_last,
            **order,
        }
    else:
        settings["batch_sampler"] = batches
    try:
        return Loader(dataset, seed=seed, split=split, accumulate=accumulate, **settings)
    # Indices that are no numbers, or another order each time it is asked.
    except (InputError, TypeError, ValueError):
        return None


def _settings(data: DataLoader[Any]) -> dict[str, Any]:
    """Return the settings of a `Loader` that say how a DataLoader loads, but for its order."""
    context: Any = data.multiprocessing_context
    is_default = type(data.dataset) is TensorDataset and data.collate_fn is torch_collate
    return {
        "collate": None if is_default else data.collate_fn,
        "workers": data.num_workers,
        "prefetch": data.prefetch_factor or 2,
        "persistent_workers": data.persistent_workers,
        "pin_memory": data.pin_memory,
        "timeout_s": data.timeout or None,  # 0 says nothing of its own: it is what torch takes
        "worker_init": data.worker_init_fn,
        "start_method": context.get_start_method() if context is not None else None,
    }


def _is_plain(data: DataLoader[Any]) -> bool:
    """Return True unless a class derived from DataLoader iterates in a way of its own.

    `_get_iterator` and `_index_sampler` are private names of torch 2.13. Were they gone, a derived
    class would be replayed, as one that has another `__iter__`.
    """
    names = ("__iter__", "_get_iterator", "_index_sampler")
    return all(getattr(type(data), name, name) is getattr(DataLoader, name, None) for name in names)


def _order(sampler: object) -> dict[str, bool] | None:
    """Return the Loader options for a sequential or shuffling sampler of torch, None for others."""
    if type(sampler) is SequentialSampler:
        return {"shuffle": False}
    if (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    ):
        return {"shuffle": True}
    return None
