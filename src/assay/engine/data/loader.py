"""Samples at positions of a plan, each loaded under its own key, collated to batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from assay.core.errors import InputError
from assay.engine.batch_size import batch_size as divided
from assay.engine.data.plan import Plan
from assay.engine.data.source import Window
from assay.engine.seed import SAMPLE, key, seed_all, undisturbed

Randomness = Literal["sample", "batch", "none"]


class MapDataset(Protocol):
    """Anything with a length and items by index; `__getitems__(indices)` is used where it exists."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def is_dataset(source: object) -> bool:
    """Whether this gives samples by index, for a `Loader` to make batches of."""
    return hasattr(source, "__len__") and hasattr(source, "__getitem__") and not isinstance(source, IterableDataset)


class Loader:
    """Batches of a map-style data set, for training (`windows`) and evaluation (iteration, in order).

    `batch_size` is the number of samples per optimizer step; `micro_batch_size` or `accumulate` splits it, and both of
    them give it where it is left out. The order
    depends on (seed, epoch) alone, the randomness of a sample on (seed, split, epoch, position): where a run is in its
    data is one integer.

    `randomness` says how loading draws: "sample" keys torch, numpy and `random` before each sample, "batch" before each
    batch, "none" promises that nothing is drawn (it is checked on the first batch). The default is "none" for a
    `TensorDataset`, "batch" for data sets with `__getitems__`, else "sample"; a data set may say so itself by an
    attribute `randomness`.
    """

    exactness = "exact (plan)"

    def __init__(
        self,
        dataset: MapDataset,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        split: str = "train",
        shuffle: bool = False,
        accumulate: int | None = None,
        micro_batch_size: int | None = None,
        drop_last: bool = False,
        randomness: Randomness | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if not is_dataset(dataset):
            raise InputError(
                f"data.{split}: {type(dataset).__name__} has no length or no items by index.",
                fix="Give a map-style data set (__len__ and __getitem__).",
            )
        self.dataset = dataset
        self.sizes = divided(batch_size, micro=micro_batch_size, accumulate=accumulate, split=split)
        self.batch_size = self.sizes.whole
        self.micro_batch_size = self.sizes.micro
        self.seed = seed
        self.split = split
        self.drop_last = drop_last
        self.randomness: Randomness = randomness or _randomness_of(dataset)
        self.collate = collate or getattr(dataset, "collate_fn", None) or default_collate
        self.plan = Plan(len(dataset), seed=seed, shuffle=shuffle)
        self._is_plain = type(dataset) is TensorDataset and self.collate is default_collate
        self._split_key = crc32(split.encode("utf-8"))
        self._checked = False

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(len(self.dataset), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __len__(self) -> int:
        return self.steps_per_epoch

    @property
    def arithmetic(self) -> str:
        """`64 = 4 accumulate x 16`, for the start of a run."""
        return str(self.sizes)

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """The windows of one epoch from number `start` on; the last may be smaller."""
        micro = self.micro_batch_size
        for position, indices in self.plan.blocks(epoch, start * self.batch_size, self.batch_size):
            if self.drop_last and len(indices) < self.batch_size:
                return
            if len(indices) <= micro:
                yield Window((self._load(epoch, position, indices),), len(indices))
            else:
                parts = [indices[i : i + micro] for i in range(0, len(indices), micro)]
                batches = [self._load(epoch, position + i * micro, part) for i, part in enumerate(parts)]
                yield Window(batches, len(indices), [len(part) for part in parts])

    def __iter__(self) -> Iterator[Any]:
        """The batches of epoch 0, whole: not split into micro-batches."""
        for position, indices in self.plan.blocks(0, 0, self.batch_size):
            if len(indices) == self.batch_size or not self.drop_last:
                yield self._load(0, position, indices)

    def _load(self, epoch: int, position: int, indices: Sequence[int]) -> Any:
        if self._is_plain:
            where = torch.tensor(indices)
            return [tensor.index_select(0, where) for tensor in self.dataset.tensors]  # type: ignore[attr-defined]
        if self.randomness == "none":
            return self._fetch(indices) if self._checked else self._check_draws_nothing(indices)
        with undisturbed():
            if self.randomness == "batch":
                seed_all(key(self.seed, SAMPLE, self._split_key, epoch, position))
                return self._fetch(indices)
            samples = []
            for offset, index in enumerate(indices):
                seed_all(key(self.seed, SAMPLE, self._split_key, epoch, position + offset))
                samples.append(self._item(index))
            return self.collate(samples)

    def _fetch(self, indices: Sequence[int]) -> Any:
        if hasattr(self.dataset, "__getitems__"):
            try:
                batch = self.dataset.__getitems__(list(indices))
            except Exception as error:
                error.add_note(f"while loading the samples {', '.join(map(str, indices))} of data.{self.split}")
                raise
            return self.collate(batch) if isinstance(batch, list) else batch
        return self.collate([self._item(index) for index in indices])

    def _item(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            error.add_note(f"while loading the sample {index} of data.{self.split}")
            raise

    def _check_draws_nothing(self, indices: Sequence[int]) -> Any:
        before = generators()
        batch = self._fetch(indices)
        if generators() != before:
            raise InputError(
                f'data.{self.split} says randomness = "none", but loading a batch draws random numbers.',
                fix='Set randomness = "sample", which makes the draws a function of seed and position.',
            )
        self._checked = True
        return batch


def generators() -> tuple[Any, ...]:
    numpy_state = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), repr(numpy_state), random.getstate()


def _randomness_of(dataset: MapDataset) -> Randomness:
    own = getattr(dataset, "randomness", None)
    if own in ("sample", "batch", "none"):
        return own  # type: ignore[no-any-return]
    if type(dataset) is TensorDataset:
        return "none"
    return "batch" if hasattr(dataset, "__getitems__") else "sample"
