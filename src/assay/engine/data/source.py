"""Windows of micro-batches, one for each optimizer step, from any source of batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch.utils.data import DataLoader

from assay.core import object_graph
from assay.core.errors import InputError
from assay.engine.data.batches import digest_sample, length_of, size_of
from assay.engine.data.fresh_process import CopyError, call_in_copies, describe_difference
from assay.engine.data.randomness import epoch_followers, generators_in, key_generator, set_epoch
from assay.engine.data.worker_shares import WorkerShare, share_out, why_unknown
from assay.engine.numerics.seed import BATCH, restore_generators, seed_all, stream_key

REPLAYED, STATEFUL = "exact (replayed)", "exact (state_dict)"
TRIED = 3
"""So many batches are loaded again, to see whether they come out equal."""
OTHERS = "its first batches are others when they are loaded again"
_LONG_S = 5.0
_NEAR = 100
"""Number of objects inside an iterable that are searched for a DataLoader, nearest first."""
_LOGGER = logging.getLogger("assay")


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

    def exactness(self, epoch: int = 0) -> str:
        """Return the exactness of a mid-epoch resume.

        "exact (HOW)", "not exact: WHY", or "unknown: WHY" where it could not be tried. It is found
        out by trying, with the data of `epoch`, when it is asked first.
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
    iterable has of its own by (seed, epoch). Whether the same comes again then is found out by
    trying. An iterator that can be iterated only once is refused for a second epoch.
    """

    def __init__(self, batches: Iterable[Any], *, accumulate: int = 1, seed: int = 0) -> None:
        if accumulate < 1:
            raise InputError(f"accumulate is {accumulate}; it must be at least 1.")
        self.batches = batches
        self.accumulate = accumulate
        self.seed = seed
        self._spent = False
        self._exactness = ""
        self._is_shared_out = False
        self._followers: list[Any] = []
        self._told: int | None = None
        self._generators: list[Any] | None = None

    @property
    def steps_per_epoch(self) -> int | None:
        length = length_of(self.batches)
        return None if length is None else -(-length // self.accumulate)

    def steps_in(self, epoch: int) -> int | None:
        """Return the number of windows of an epoch as the batches say it, told of the epoch."""
        self._share_out()
        self._set_epoch(epoch)
        self._told = epoch
        return self.steps_per_epoch

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        batches = self._begin(epoch, 0)
        return self._cut(islice(batches, start * self.accumulate, None))

    def exactness(self, epoch: int = 0) -> str:
        """Return the exactness, found once by loading the first batches of an epoch from a copy."""
        if not self._exactness:
            begun = perf_counter()
            self._share_out()
            try:
                self._exactness = self._try_exactness(epoch)
            except CopyError as error:
                self._exactness = f"unknown: {error}"
            took = perf_counter() - begun
            if took > _LONG_S:
                _LOGGER.info(
                    "data.train: in %.0f s its first batches were loaded again to see if they are "
                    "equal",
                    took,
                )
        return self._exactness

    def _try_exactness(self, epoch: int) -> str:
        if isinstance(self.batches, Iterator):
            return "not exact: an iterator can be gone through once only"
        if isinstance(self.batches, list | tuple):
            return REPLAYED
        twin = Replayed(_copy_shallow(self.batches), seed=self.seed)
        fresh = partial(twin._digests, epoch)
        # A resumed run has loaded nothing before; one that was not interrupted has.
        first, again = call_in_copies(fresh, partial(twin._digests, epoch + 1, epoch))
        if first != again:
            return f"not exact: {self._why(first, fresh)}"
        dataset = getattr(self.batches, "dataset", None)
        if isinstance(dataset, WorkerShare):
            kind = type(dataset.dataset).__name__
            return f"{REPLAYED[:-1]}: {kind} gives all in each worker, which is left its share)"
        why = why_unknown(self.batches)
        return f"unknown: {why}" if why else REPLAYED

    def _digests(self, *epochs: int) -> list[int]:
        """Load the first batches of epochs, one after another; return digests of the last one's."""
        digests: list[int] = []
        for epoch in epochs:
            digests = [digest_sample(batch) for batch in islice(self._begin(epoch, 0), TRIED)]
        return digests

    def _why(self, first: list[int], fresh: Callable[[], list[int]]) -> str:
        """Return why the first batches differ when they are loaded again."""
        if getattr(self.batches, "persistent_workers", False):
            return (
                f"{OTHERS}: its workers keep the state of their generators "
                "(persistent_workers=False would help)"
            )
        drawn = f"{OTHERS}, from whatever they are drawn (`random`, numpy and torch are keyed)"
        data = {type(self.batches).__name__: self.batches}
        return describe_difference(data, fresh, first, drawn=drawn)

    def _begin(self, epoch: int, done: int) -> Iterator[Any]:
        """Begin an epoch: return its batches, of which the first is number `done`."""
        self._share_out()
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

    def _share_out(self) -> None:
        """Let each of several workers give its share of the samples, when they are first needed.

        Find what is told of each epoch; workers that have a copy of it begin anew in each.
        """
        if self._is_shared_out:
            return
        self._is_shared_out = True
        batches = self.batches = share_out(self.batches)
        if not isinstance(batches, list | tuple):
            self._followers = epoch_followers(batches)
        has_copies = isinstance(batches, DataLoader) and batches.persistent_workers
        if has_copies and epoch_followers(batches.dataset, batches.collate_fn):
            self.batches = copy(batches)
            vars(self.batches)["persistent_workers"] = False

    def _set_epoch(self, epoch: int) -> None:
        own = getattr(self.batches, "set_epoch", None)
        if callable(own) and not callable(getattr(type(self.batches), "set_epoch", None)):
            own(epoch)  # of an object inside that it stands for
        set_epoch(self._followers, epoch, again=True)

    def _iterate_keyed(self, epoch: int, done: int) -> Iterator[Any]:
        number = done
        self._key_own(epoch)
        with restore_generators(keyed=True):
            # Some loaders draw as they begin: those of torch, for their workers.
            seed_all(stream_key(self.seed, BATCH, epoch, -1))
            iterator = iter(self.batches)
        while True:
            with restore_generators(keyed=True):
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


def _copy_shallow(batches: Any) -> Any:
    """Return a shallow copy, so that a trial changes no counter; else the original."""
    try:
        return copy(batches)
    except Exception:  # whatever a class of the user does when it is copied
        return batches


class ReplayedStream(Replayed):
    """Source over a DataLoader of a data set that gives one sample after the other.

    Which samples a batch has depends on the number of workers: a checkpoint keeps it.
    """

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
    """Source over batches whose state is part of each checkpoint; a resume skips nothing.

    That is tried too. Where other batches come after a state is loaded, as from workers that
    augment, whose generators are no part of it, a run that goes on goes through what was seen
    instead.
    """

    def __init__(self, batches: KeepsState, *, accumulate: int = 1, seed: int = 0) -> None:
        super().__init__(batches, accumulate=accumulate, seed=seed)
        self._inside = False
        self._loaded: dict[str, Any] | None = None

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        loaded, self._loaded = self._loaded, None
        if not start or loaded is None or self.exactness(epoch) != STATEFUL:
            return self._note_inside(super().windows(epoch, start))
        self.batches.load_state_dict(loaded)  # type: ignore[attr-defined]
        return self._note_inside(self._cut(self._begin(epoch, start * self.accumulate)))

    def _try_exactness(self, epoch: int) -> str:
        goes_on = self._goes_on(epoch)
        if goes_on:
            return STATEFUL
        found = super()._try_exactness(epoch)
        return (
            f"{REPLAYED[:-1]}: its state_dict goes on otherwise)"
            if (found, goes_on) == (REPLAYED, False)
            else found
        )

    def _goes_on(self, epoch: int) -> bool | None:
        """Return True if a loaded state is followed by the expected batches; None if untestable."""
        source = StatefulData(_copy_shallow(self.batches), seed=self.seed)
        ((whole, state),) = call_in_copies(partial(source._digest_unbroken, epoch))
        if not whole[1:]:
            return None
        (rest,) = call_in_copies(partial(source._digest_after, state, epoch))
        return bool(whole[1:] == rest)

    def _digest_unbroken(self, epoch: int) -> tuple[list[int], Any]:
        """Return digests of the first batches after another epoch, and the state after one."""
        self._digests(epoch + 1)
        digests: list[int] = []
        states: list[Any] = []
        for batch in islice(self._begin(epoch, 0), TRIED):
            digests.append(digest_sample(batch))
            if not states:
                states.append(self.batches.state_dict())  # type: ignore[attr-defined]
        return digests, states[0] if states else None

    def _digest_after(self, state: Any, epoch: int) -> list[int]:
        """Return digests of the batches that follow after the first, from its state on."""
        self.batches.load_state_dict(state)  # type: ignore[attr-defined]
        return [digest_sample(batch) for batch in islice(self._begin(epoch, 1), TRIED - 1)]

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
