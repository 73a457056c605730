"""Windows of micro-batches, one for each optimizer step, from any source of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader

from assay.core import object_graph
from assay.core.errors import InputError
from assay.engine.data.batches import length_of, size_of
from assay.engine.data.randomness import epoch_followers, generators_in, key_generator, set_epoch
from assay.engine.numerics.seed import BATCH, restore_generators, seed_all, stream_key

_NEAR = 100
"""Number of objects inside an iterable that are searched for a DataLoader, nearest first."""


class Window(NamedTuple):
    """Batches of one optimizer step. `sizes`: samples of each, None if there is only one batch.

    On several ranks these batches are the share of one of them, which may be none; `samples` are
    those of all, and `micro_steps` is how many batches the rank with the most has.
    """

    batches: Sequence[Any]
    samples: int
    sizes: Sequence[int] | None = None
    micro_steps: int = 1


@runtime_checkable
class Source(Protocol):
    """Interface of anything that yields windows."""

    def exactness(self) -> str:
        """Return how exactly an epoch is resumed, by the kind of the source alone.

        "exact (RULE)", "not tried (WHAT HAPPENS)" or "not exact: WHY".
        """
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Windows of one epoch; None when nobody can know."""
        ...

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """Yield the windows of an epoch from number `start` on."""
        ...


def steps_in(source: Source, epoch: int) -> int | None:
    """Return what a source says of the number of windows of an epoch; it may say it of each."""
    own = getattr(source, "steps_in", None)
    return source.steps_per_epoch if own is None else own(epoch)


class Replayed:
    """Source over any iterable of batches; a mid-epoch resume replays the seen batches.

    Iterating is keyed: torch, numpy and `random` by (seed, epoch, batch), and generators that the
    iterable has of its own by (seed, epoch). An iterator that can be iterated only once is refused
    for a second epoch.
    """

    def __init__(self, batches: Iterable[Any], *, accumulate: int = 1, seed: int = 0) -> None:
        if accumulate < 1:
            raise InputError(f"accumulate is {accumulate}; it must be at least 1.")
        self.batches = batches
        self.accumulate = accumulate
        self.seed = seed
        self._spent = False
        self._is_prepared = False
        self._followers: list[Any] = []
        self._told: int | None = None
        self._generators: list[Any] | None = None

    @property
    def steps_per_epoch(self) -> int | None:
        length = length_of(self.batches)
        return None if length is None else -(-length // self.accumulate)

    def steps_in(self, epoch: int) -> int | None:
        """Return the number of windows of an epoch as the batches say it, told of the epoch."""
        self._prepare()
        self._set_epoch(epoch)
        self._told = epoch
        return self.steps_per_epoch

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        batches = self._begin(epoch, 0)
        return self._cut(islice(batches, start * self.accumulate, None))

    def exactness(self) -> str:
        if isinstance(self.batches, Iterator):
            return "not exact: an iterator can be gone through once only"
        return (
            "exact (a list)" if isinstance(self.batches, list | tuple) else "not tried (replayed)"
        )

    def _begin(self, epoch: int, done: int) -> Iterator[Any]:
        """Begin an epoch: return its batches, of which the first is number `done`."""
        self._prepare()
        if epoch != self._told:
            self._set_epoch(epoch)
        self._told = None  # to call it may be how another pass begins
        if isinstance(self.batches, Iterator):
            if self._spent:
                raise InputError(
                    "The training data is an iterator: it can be gone through once only.",
                    fix=(
                        "Give something that can be iterated again (a list, a DataLoader), or "
                        "bound the run by steps."
                    ),
                )
            self._spent = True
        if isinstance(self.batches, list | tuple):
            return iter(self.batches)  # draws nothing
        return self._iterate_keyed(epoch, done)

    def _prepare(self) -> None:
        """Find what is told of each epoch; workers that have a copy of it begin anew in each."""
        if self._is_prepared:
            return
        self._is_prepared = True
        batches: Any = self.batches
        if not isinstance(batches, list | tuple):
            self._followers = epoch_followers(batches)
        has_copies = isinstance(batches, DataLoader) and batches.persistent_workers
        if has_copies and epoch_followers(batches.dataset, batches.collate_fn):
            self.batches = copy(batches)  # a DataLoader refuses another value after it is made
            vars(self.batches)["persistent_workers"] = False

    def _set_epoch(self, epoch: int) -> None:
        own = getattr(self.batches, "set_epoch", None)
        if callable(own) and not callable(getattr(type(self.batches), "set_epoch", None)):
            own(epoch)  # of an object inside that it stands for
        set_epoch(self._followers, epoch, again=True)

    def _iterate_keyed(self, epoch: int, done: int) -> Iterator[Any]:
        number = done
        self._key_own(epoch)
        with restore_generators():
            # Some loaders draw as they begin: those of torch, for their workers.
            seed_all(stream_key(self.seed, BATCH, epoch, -1))
            iterator = iter(self.batches)
        while True:
            with restore_generators():
                seed_all(stream_key(self.seed, BATCH, epoch, number))
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            number += 1
            yield batch

    def _key_own(self, epoch: int) -> None:
        """Key generators inside the iterable, such as the `generator` of a DataLoader."""
        if self._generators is None:
            if isinstance(self.batches, DataLoader):
                # Else the seed of the workers comes from the generator that shuffles, but in the
                # first epoch only where
                # they live on: the order of all others would depend on which epoch was the first of
                # its process.
                self.batches.generator = torch.Generator()
            self._generators = [generator for generator, _ in generators_in(self.batches)]
        for number, generator in enumerate(self._generators):
            key_generator(generator, stream_key(self.seed, BATCH, epoch, -2 - number))

    def _cut(self, iterator: Iterator[Any]) -> Iterator[Window]:
        if self.accumulate == 1:
            return (Window((batch,), size_of(batch)) for batch in iterator)
        return self._windows_of_several(iterator)

    def _windows_of_several(self, iterator: Iterator[Any]) -> Iterator[Window]:
        while batches := list(islice(iterator, self.accumulate)):
            sizes = [size_of(batch) for batch in batches]
            yield Window(batches, sum(sizes), sizes)


class ReplayedStream(Replayed):
    """Source over a DataLoader of a data set that gives one sample after the other.

    Which samples a batch has depends on the number of workers: a checkpoint keeps it.
    """

    def exactness(self) -> str:
        workers = workers_of(self.batches)
        if workers < 2:
            return super().exactness()
        return f"not tried (replayed; each of {workers} workers gives its share by get_worker_info)"

    def state_dict(self) -> dict[str, Any]:
        return {"workers": workers_of(self.batches)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_workers(state, self.batches)


def workers_of(batches: Any) -> int:
    """Return the number of workers of a DataLoader, also of one inside an iterable."""
    loader = loader_inside(batches)
    return loader.num_workers if loader is not None else 0


def loader_inside(batches: object) -> DataLoader[Any] | None:
    """Return the DataLoader that an iterable is or holds, as `WebLoader` of webdataset does."""
    things = (thing for thing, _ in object_graph.inside(batches, limit=_NEAR))
    return next((thing for thing in things if isinstance(thing, DataLoader)), None)


def check_workers(state: Mapping[str, Any], batches: Any) -> None:
    """Raise InputError for the state of another number of workers."""
    then, now = state.get("workers"), workers_of(batches)
    if then is not None and then != now:
        raise InputError(
            f"data.train was loaded by {then} workers, not {now}: a resumed run would lose samples"
            " and repeat others.",
            fix=f"Resume with data.train.workers = {then} (num_workers of a DataLoader). A data set"
            " with items by index does not depend on it.",
        )


class KeepsState(Protocol):
    """Batches with a state of their own, as torchdata's StatefulDataLoader has."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class StatefulData(Replayed):
    """Source over batches whose state is part of each checkpoint; a resume skips nothing."""

    def __init__(self, batches: KeepsState, *, accumulate: int = 1, seed: int = 0) -> None:
        super().__init__(batches, accumulate=accumulate, seed=seed)
        self._inside = False
        self._loaded: dict[str, Any] | None = None

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        loaded, self._loaded = self._loaded, None
        if not start or loaded is None:
            return self._note_inside(super().windows(epoch, start))
        self.batches.load_state_dict(loaded)  # type: ignore[attr-defined]
        return self._note_inside(self._cut(self._begin(epoch, start * self.accumulate)))

    def exactness(self) -> str:
        if workers_of(self.batches):
            return "not tried (state_dict, which lacks the generators of its workers)"
        return "exact (state_dict)"

    def _note_inside(self, windows: Iterator[Window]) -> Iterator[Window]:
        for window in windows:
            self._inside = True
            yield window
        self._inside = False

    def state_dict(self) -> dict[str, Any]:
        workers = workers_of(self.batches)
        if self._loaded is not None:  # it waits for the first batch
            return {"batches": self._loaded, "workers": workers}
        batches = self.batches.state_dict() if self._inside else None  # type: ignore[attr-defined]
        return {"batches": batches, "workers": workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_workers(state, self.batches)
        self._loaded = state["batches"]


@runtime_checkable
class Seedable(Protocol):
    """Loader of ours, which may be made without a seed, and takes that of the engine."""

    seed: int
    is_seeded: bool

    def with_seed(self, seed: int) -> Iterable[Any]:
        """Return the same loader under a seed."""
        ...


def settle_seed(data: Iterable[Any], seed: int | None) -> tuple[Iterable[Any], int]:
    """Return (data, seed) of a run: the seed of the data or of the engine, whichever is given."""
    if not isinstance(data, Seedable):
        return data, seed or 0
    if data.is_seeded:
        return data, data.seed if seed is None else seed
    if seed is None or seed == data.seed:  # then it stays the one that was given
        return data, data.seed
    return data.with_seed(seed), seed
