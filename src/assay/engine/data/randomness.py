"""Samples loaded under keys: random draws depend on the position of a sample alone.

Data are searched for what has to be told: generators and `set_rng` of the key, `set_epoch` of the
epoch, however deep it is wrapped.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from assay.core import object_graph
from assay.engine.data.batches import refuse_none
from assay.engine.numerics.seed import SAMPLE, key_all, keys, stream_key

Randomness = Literal["sample", "batch", "none"]

MAX_SEARCHED = 5_000
"""Objects of data that are searched for generators and methods; the nearest come first."""


class MapDataset(Protocol):
    """Map-style data set; `__getitems__(indices)` is used if present."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class _Nowhere:
    """Stand-in for the shared number that tells other processes the current sample."""

    value = -1


class Fetch:
    """Function that loads and collates the batch of a position, each sample under its own key.

    It is copied to worker processes, so that a batch is the same whoever loads it. The global
    generators are keyed, those that lie inside the data set, and whatever has a `set_rng`; nothing
    under `randomness = "none"`. In training, whatever in the data set or in `collate` has a
    `set_epoch` is told of the epoch.
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
        self.place: Any = (
            _Nowhere()
        )  # a number that others see there: the sample that is being loaded
        self._split_key = crc32(split.encode("utf-8"))
        self._keyed = [thing for thing, _ in keyable(dataset)]
        # Other splits are always in epoch 0, and may be parts of the data set that trains.
        self._followers = epoch_followers(dataset, collate) if split == "train" else []
        # Looked for at the first batch: a worker may have been given its own by `worker_init`.
        self._private: list[Any] | None = None

    def __call__(self, epoch: int, position: int, indices: Sequence[int]) -> Any:
        """Return the batch of `indices`, which stand at `position` and after it."""
        self.tell(epoch)
        if self.randomness == "none":
            return self._fetch(indices)
        if self._private is None:
            self._private = [generator for generator, _ in generators_in(self.dataset)]
        if self.randomness == "sample":
            return self._collate(self._keyed_items(epoch, position, indices), indices)
        self._key(stream_key(self.seed, SAMPLE, self._split_key, epoch, position))
        return self._fetch(indices)

    def tell(self, epoch: int) -> bool:
        """Tell the data of the epoch; return whether anything in it wants to know."""
        set_epoch(self._followers, epoch)
        return bool(self._followers)

    def _keyed_items(self, epoch: int, position: int, indices: Sequence[int]) -> list[Any]:
        """Load each sample under its own key; written flat, because it runs for every sample."""
        dataset, now = self.dataset, self.place
        has_own = bool(self._keyed or self._private)
        samples = []
        index = -1
        values = keys(self.seed, SAMPLE, self._split_key, epoch, position, count=len(indices))
        try:
            for value, index in zip(values, indices, strict=True):
                key_all(value)
                if has_own:
                    self._key_own(value)
                now.value = index
                samples.append(dataset[index])
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"while loading the sample {index} of data.{self.split}")
            raise
        return samples

    def _key(self, value: int) -> None:
        key_all(value)
        self._key_own(value)

    def _key_own(self, value: int) -> None:
        """Key what the data set has of its own."""
        for generator in self._private or ():
            key_generator(generator, value)
        for thing in self._keyed:  # after the generators, which may be its own
            thing.set_rng(value)

    def _fetch(self, indices: Sequence[int]) -> Any:
        samples = self._items(indices)
        return self._collate(samples, indices) if isinstance(samples, list) else samples

    def _collate(self, samples: list[Any], indices: Sequence[int]) -> Any:
        try:
            return self.collate(samples)
        except Exception as error:  # whatever it is goes up as it came, with a note
            names = [f"The sample {index} of data.{self.split}" for index in indices]
            refuse_none(samples, names, error)
            error.add_note(
                f"while making a batch of the samples {', '.join(map(str, indices))} of "
                f"data.{self.split}"
            )
            raise

    def _items(self, indices: Sequence[int]) -> Any:
        if not hasattr(self.dataset, "__getitems__"):
            return self._each(indices)
        self.place.value = indices[0]
        try:
            return self.dataset.__getitems__(list(indices))
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(
                f"while loading the samples {', '.join(map(str, indices))} of data.{self.split}"
            )
            raise

    def _each(self, indices: Sequence[int]) -> list[Any]:
        dataset, now = self.dataset, self.place
        samples = []
        index = -1
        try:
            for index in indices:
                now.value = index
                samples.append(dataset[index])
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"while loading the sample {index} of data.{self.split}")
            raise
        return samples


def keyable(thing: object) -> Iterator[tuple[Any, str]]:
    """Yield (object, path) for each object inside a data set that has a `set_rng(key)`."""
    for inner, way in object_graph.inside(thing, limit=MAX_SEARCHED):
        if callable(getattr(type(inner), "set_rng", None)):
            yield inner, way


def private_generators(thing: object) -> list[tuple[str, str]]:
    """Return (path, type) of each generator inside a data set."""
    found = []
    for generator, way in generators_in(thing):
        kind = next(each for each in _KEYED if isinstance(generator, each))
        found.append(
            (
                way,
                f"{kind.__module__.removeprefix('numpy.random.').split('.')[0]}.{kind.__qualname__}",
            )
        )
    return found


def generators_in(thing: object) -> Iterator[tuple[Any, str]]:
    """Yield (generator, path) for each generator inside an object, without the global ones."""
    for inner, way in object_graph.inside(thing, limit=MAX_SEARCHED):
        if isinstance(inner, tuple(_KEYED)) and not any(inner is shared for shared in _GLOBAL):
            yield inner, way


def key_generator(generator: Any, value: int) -> None:
    """Key one generator as `key_all` keys the global ones."""
    next(put for kind, put in _KEYED.items() if isinstance(generator, kind))(generator, value)


def _key_numpy(generator: np.random.Generator, value: int) -> None:
    generator.bit_generator.state = type(generator.bit_generator)(value).state


_KEYED: dict[type, Callable[[Any, int], object]] = {
    torch.Generator: torch.Generator.manual_seed,
    np.random.Generator: _key_numpy,
    np.random.RandomState: lambda generator, value: generator.seed(value & 0xFFFFFFFF),
    random.Random: random.Random.seed,
}
_GLOBAL = (torch.default_generator, np.random.rand.__self__, random.random.__self__)  # type: ignore[attr-defined]


def randomness_of(dataset: Any) -> Randomness:
    """Return the default randomness: the attribute of the data set, else by its type.

    Torch's own tensor data sets draw nothing, nor do its `Subset` and `ConcatDataset` of them.
    """
    own = getattr(dataset, "randomness", None)
    if own in ("sample", "batch", "none"):
        return own  # type: ignore[no-any-return]
    if type(dataset) is TensorDataset:
        return "none"
    if type(dataset) is Subset:
        return randomness_of(dataset.dataset)
    if type(dataset) is ConcatDataset and all(
        randomness_of(each) == "none" for each in dataset.datasets
    ):
        return "none"
    return "batch" if hasattr(dataset, "__getitems__") else "sample"


_TOLD: dict[int, tuple[weakref.ref[Any], int]] = {}
"""The newest epoch of each object, by its id: a data set may be part of several loaders."""


def epoch_followers(*things: object) -> list[Any]:
    """Return the objects that are or lie inside of `things` and have a `set_epoch`."""
    followers = {
        id(inner): inner
        for thing in things
        for inner, _ in object_graph.inside(thing, limit=MAX_SEARCHED)
        if callable(getattr(type(inner), "set_epoch", None))
    }
    return list(followers.values())


def set_epoch(followers: Iterable[Any], epoch: int, *, again: bool = False) -> None:
    """Call `set_epoch` of each of them; of one that is in that epoch only if `again`."""
    for follower in followers:
        if not again and _is_in(follower, epoch):
            continue
        follower.set_epoch(epoch)
        # Of slots without __weakref__ nothing is kept: it is told before each batch.
        with suppress(TypeError):
            _TOLD[id(follower)] = weakref.ref(follower, partial(_forget, id(follower))), epoch


def _is_in(follower: object, epoch: int) -> bool:
    told = _TOLD.get(id(follower))
    return told is not None and told[1] == epoch and told[0]() is follower


def _forget(number: int, _: object) -> None:
    _TOLD.pop(number, None)
