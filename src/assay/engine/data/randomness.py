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

from assay.core import object_graph
from assay.core.errors import InputError
from assay.engine.data.batches import digest_sample, refuse_none
from assay.engine.numerics.seed import (
    SAMPLE,
    SEEDERS,
    LentGenerators,
    comparable_state,
    key_all,
    keys,
    read_generator_state,
    restore_generators,
    seeders_of,
    stream_key,
)

Randomness = Literal["sample", "batch", "none"]

DRAWN = "a sample is another one when it is loaded again, from whatever it is drawn"
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

    It is copied to worker processes, so that a batch is the same whoever loads it. The first sample
    is loaded twice. If it comes out different, the generators that the data set has of its own are
    keyed too; if it still does, `notes` say why loading is not exact. In training, whatever in the
    data set or in `collate` has a `set_epoch` is told of the epoch.

    Of all generators those are keyed that loading was seen to draw from. A batch that draws from
    another one is loaded again with that keyed too.
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
        self.at: Any = _Nowhere()  # a number that others see there: the sample that is being loaded
        self.notes: list[str] = []
        self._split_key = crc32(split.encode("utf-8"))
        self._keyed = [thing for thing, _ in keyable(dataset)]
        # Other splits are always in epoch 0, and may be parts of the data set that trains.
        self._followers = epoch_followers(dataset, collate) if split == "train" else []
        self._private: list[Any] = []  # generators of the data set itself
        self._own: list[Any] = []  # the same, if it was seen to draw from one
        self._drawn: set[str] = set()  # global generators that it was seen to draw from
        self._is_checked = False

    def __call__(self, epoch: int, position: int, indices: Sequence[int]) -> Any:
        """Return the batch of `indices`, which stand at `position` and after it."""
        self.tell(epoch)
        if not self._is_checked:
            self._check(epoch, position, indices)
        if self.randomness == "none" and not self._keyed and not self._own:
            return self._fetch(indices)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._drawn = set(SEEDERS)  # draws on a GPU are not looked for
        while True:
            states = self._states_of_unkeyed()
            with LentGenerators() as lent:
                try:
                    batch = self._load(epoch, position, indices)
                except Exception:  # numbers that were not keyed may be why it failed
                    if not self._has_found_draws(lent, states):
                        raise
                else:
                    if not self._has_found_draws(lent, states):
                        return batch

    def _load(self, epoch: int, position: int, indices: Sequence[int]) -> Any:
        if self.randomness != "sample":
            self._seed(stream_key(self.seed, SAMPLE, self._split_key, epoch, position))
            return self._fetch(indices)
        if self._drawn or self._keyed or self._own:
            return self._collate(self._keyed_items(epoch, position, indices), indices)
        return self._collate(self._each(indices), indices)

    def _states_of_unkeyed(self) -> list[Any]:
        """Return the states of the data set's own generators, as long as none is keyed."""
        if self.randomness == "none" or self._own:
            return []
        return [read_generator_state(generator) for generator in self._private]

    def _has_found_draws(self, lent: LentGenerators, states: list[Any]) -> bool:
        """Return whether loading drew from a generator that was not keyed; from now on it is.

        `states` are those of its own generators before.
        """
        is_own = states != self._states_of_unkeyed()
        if is_own:
            self._own = self._private
        if self.randomness == "none" or len(self._drawn) == len(SEEDERS):
            return is_own
        found = lent.find_drawn() - self._drawn
        self._drawn |= found
        return is_own or bool(found)

    def tell(self, epoch: int) -> bool:
        """Tell the data of the epoch; return whether anything in it wants to know."""
        set_epoch(self._followers, epoch)
        return bool(self._followers)

    def _keyed_items(self, epoch: int, position: int, indices: Sequence[int]) -> list[Any]:
        """Load each sample under its own key; written flat, because it runs for every sample."""
        dataset = self.dataset
        seeding = seeders_of(self._drawn)
        keyed = self._keyed
        own = self._own
        samples = []
        index = -1
        now = self.at
        values = keys(self.seed, SAMPLE, self._split_key, epoch, position, count=len(indices))
        try:
            for value, index in zip(values, indices, strict=True):
                for put in seeding:
                    put(value)
                for thing in keyed:
                    thing.set_rng(value)
                for generator in own:
                    key_generator(generator, value)
                now.value = index
                samples.append(dataset[index])
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(f"while loading the sample {index} of data.{self.split}")
            raise
        return samples

    def _seed(self, value: int) -> None:
        for name in self._drawn:
            SEEDERS[name](value)
        for thing in self._keyed:
            thing.set_rng(value)
        for generator in self._own:
            key_generator(generator, value)

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
        try:
            return self.dataset.__getitems__(list(indices))
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(
                f"while loading the samples {', '.join(map(str, indices))} of data.{self.split}"
            )
            raise

    def _each(self, indices: Sequence[int]) -> list[Any]:
        dataset, now = self.dataset, self.at
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

    def _check(self, epoch: int, position: int, indices: Sequence[int]) -> None:
        """Load the first sample several times and compare; InputError if "none" turns out wrong."""
        first = indices[:1]
        value = stream_key(self.seed, SAMPLE, self._split_key, epoch, position)
        self._private = [generator for generator, _ in generators_in(self.dataset)]
        with restore_generators():
            digest_of_first = self._digest(first, value)
            if self._digest(first, value) != digest_of_first:
                self._own = self._private
                digest_of_first = self._digest(first, value)
                if not self._own or self._digest(first, value) != digest_of_first:
                    self._own = []
                    self._drawn = set(SEEDERS)
                    if DRAWN not in self.notes:
                        self.notes.append(DRAWN)
            # Who draws and puts the state back is found by what comes out under another key.
            if (
                self.randomness != "none"
                and len(self._drawn) < len(SEEDERS)
                and self._digest(first, value, other=value ^ 1) != digest_of_first
            ):
                self._drawn = set(SEEDERS)
        self._is_checked = True

    def _digest(self, first: Sequence[int], value: int, other: int | None = None) -> int:
        """Return a digest of the first sample under a key, and remember what it draws from.

        Generators that it was not seen to draw from have the key `other`, if that is given.
        """
        if self.randomness != "none":
            key_all(value if other is None else other)
        self._seed(value)
        before = comparable_state()
        is_batch = self.randomness == "batch"
        found = digest_sample(self._items(first) if is_batch else self._each(first))
        after = comparable_state()
        drawn = {name for name in SEEDERS if after[name] != before[name]}
        if drawn and self.randomness == "none":
            raise InputError(
                f'data.{self.split} says randomness = "none", but loading a sample draws '
                "random numbers.",
                fix=(
                    'Set randomness = "sample", which makes the draws a function of seed and '
                    "position."
                ),
            )
        self._drawn |= drawn
        return found


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


def randomness_of(dataset: MapDataset) -> Randomness:
    """Return the default randomness: the attribute of the data set, else by its type."""
    own = getattr(dataset, "randomness", None)
    if own in ("sample", "batch", "none"):
        return own  # type: ignore[no-any-return]
    if type(dataset) is torch.utils.data.TensorDataset:
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
