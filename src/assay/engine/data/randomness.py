"""Samples loaded under their keys: what is drawn while one is loaded depends on where it stands, and nothing else."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, Protocol
from zlib import crc32

import numpy as np
import torch

from assay.core import reach
from assay.core.errors import InputError
from assay.engine.seed import SAMPLE, key, key_all, undisturbed

Randomness = Literal["sample", "batch", "none"]

MAX_SEARCHED = 5_000
"""Objects of a data set that are searched for generators; the nearest come first."""


class MapDataset(Protocol):
    """Anything with a length and items by index; `__getitems__(indices)` is used where it exists."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Fetch:
    """Makes the batch of a position from the samples of a data set, each drawn under its own key.

    It is copied to worker processes, so that a batch is the same whoever loads it. The first sample is loaded twice:
    one that comes out different draws from a generator that nobody keys, which is told in `notes`.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        collate: Callable[[list[Any]], Any],
        randomness: Randomness,
        seed: int = 0,
        split: str = "train",
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.randomness = randomness
        self.seed = seed
        self.split = split
        self.alone = False  # in a worker process: there are no generators of training to leave alone
        self.notes: list[str] = []
        self._split_key = crc32(split.encode("utf-8"))
        self._keyed = [thing for thing, _ in keyable(dataset)]
        self._is_checked = False

    def __call__(self, epoch: int, position: int, indices: Sequence[int]) -> Any:
        """The batch of `indices`, which stand at `position` and after it."""
        if not self._is_checked:
            self._check(epoch, position, indices)
        if self.randomness == "none" and not self._keyed:
            return self._fetch(indices)
        with nullcontext() if self.alone else undisturbed(keyed=self.randomness != "none"):
            if self.randomness != "sample":
                self._seed(epoch, position)
                return self._fetch(indices)
            return self._collated(self._keyed_items(epoch, position, indices), indices)

    def _keyed_items(self, epoch: int, position: int, indices: Sequence[int]) -> list[Any]:
        """Each sample under its own key. What is done here is done for every sample: it is written out flat."""
        dataset, keyed, samples, index = self.dataset, self._keyed, [], -1
        seed, split = self.seed, self._split_key
        try:
            for at, index in enumerate(indices, position):
                value = key(seed, SAMPLE, split, epoch, at)
                key_all(value)
                for thing in keyed:
                    thing.set_rng(value)
                samples.append(dataset[index])
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"while loading the sample {index} of data.{self.split}")
            raise
        return samples

    def _seed(self, epoch: int, position: int) -> None:
        value = key(self.seed, SAMPLE, self._split_key, epoch, position)
        if self.randomness != "none":
            key_all(value)
        for thing in self._keyed:
            thing.set_rng(value)

    def _fetch(self, indices: Sequence[int]) -> Any:
        samples = self._items(indices)
        return self._collated(samples, indices) if isinstance(samples, list) else samples

    def _collated(self, samples: list[Any], indices: Sequence[int]) -> Any:
        try:
            return self.collate(samples)
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"while making a batch of the samples {', '.join(map(str, indices))} of data.{self.split}")
            raise

    def _items(self, indices: Sequence[int]) -> Any:
        if not hasattr(self.dataset, "__getitems__"):
            return [self._item(index) for index in indices]
        try:
            return self.dataset.__getitems__(list(indices))
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"while loading the samples {', '.join(map(str, indices))} of data.{self.split}")
            raise

    def _item(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"while loading the sample {index} of data.{self.split}")
            raise

    def _check(self, epoch: int, position: int, indices: Sequence[int]) -> None:
        """Load the first sample twice under one key. InputError when it draws and should not."""
        first = indices[:1]
        with undisturbed():
            samples = []
            for _ in range(2):
                self._seed(epoch, position)
                before = generators() if self.randomness == "none" else None
                samples.append(self._items(first) if self.randomness == "batch" else [self._item(i) for i in first])
                if before is not None and generators() != before:
                    raise InputError(
                        f'data.{self.split} says randomness = "none", but loading a sample draws random numbers.',
                        fix='Set randomness = "sample", which makes the draws a function of seed and position.',
                    )
        if not same(*samples):
            self.notes.append(
                f"data.{self.split} draws from a private generator{_named(self.dataset)}; resume will not be exact."
            )
        self._is_checked = True


def keyable(thing: object) -> Iterator[tuple[Any, str]]:
    """Everything inside a data set that takes a key for its own generator, `set_rng(key)`, with the way to it."""
    for inner, way in reach.inside(thing, limit=MAX_SEARCHED):
        if callable(getattr(type(inner), "set_rng", None)):
            yield inner, way


def private_generators(thing: object) -> list[tuple[str, str]]:
    """(way, kind) of each generator that a data set has of its own, such as (".rng", "numpy.random.Generator")."""
    found = []
    for inner, way in reach.inside(thing, limit=MAX_SEARCHED):
        kind = next((each for each in _KINDS if isinstance(inner, each)), None)
        if kind is not None:
            found.append((way, f"{kind.__module__.removeprefix('numpy.random.').split('.')[0]}.{kind.__qualname__}"))
    return found


_KINDS: tuple[type, ...] = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def _named(dataset: object) -> str:
    found = private_generators(dataset)
    return f" ({', '.join(f'{type(dataset).__name__}{way}' for way, _ in found)})" if found else ""


def randomness_of(dataset: MapDataset) -> Randomness:
    """How loading draws when nobody says so: as the data set says, else by its kind."""
    own = getattr(dataset, "randomness", None)
    if own in ("sample", "batch", "none"):
        return own  # type: ignore[no-any-return]
    if type(dataset) is torch.utils.data.TensorDataset:
        return "none"
    return "batch" if hasattr(dataset, "__getitems__") else "sample"


def generators() -> tuple[Any, ...]:
    """What the global generators are at, to be compared."""
    numpy_state = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), repr(numpy_state), random.getstate()


def same(one: Any, other: Any) -> bool:
    """Whether two samples are equal as far as anybody can tell: what cannot be compared counts as equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and _same_array(one.detach(), other.detach())
    if isinstance(one, np.ndarray):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return bool(alike and one.tobytes() == other.tobytes())
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        names = [each.name for each in dataclasses.fields(one)]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, bool | int | float | complex | str | bytes | np.generic):
        return bool(one == other) or bool(one != one and other != other)
    return True


def _same_array(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_floating_point() or one.is_complex():
        return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())
    return torch.equal(one, other)
