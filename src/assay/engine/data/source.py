"""Windows of micro-batches: what one optimizer step trains on, whatever the batches come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from assay.core.errors import InputError
from assay.engine.batches import size_of
from assay.engine.seed import BATCH, key, seed_all, undisturbed


class Window(NamedTuple):
    """The batches of one optimizer step. `sizes`: samples of each; None when there is one batch only.

    On several ranks these batches are the share of one of them, which may be none; `samples` are those of all, and
    `micro_steps` is how many batches the rank with the most has.
    """

    batches: Sequence[Any]
    samples: int
    sizes: Sequence[int] | None = None
    micro_steps: int = 1


@runtime_checkable
class Source(Protocol):
    """Where windows come from."""

    @property
    def exactness(self) -> str:
        """What going on in the middle of an epoch means here, for the user."""
        ...

    @property
    def steps_per_epoch(self) -> int | None:
        """Windows of one epoch; None when nobody can know."""
        ...

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """The windows of an epoch from number `start` on."""
        ...


class Replayed:
    """Any iterable of batches. Going on in the middle of an epoch goes through what was seen and leaves it out.

    Iterating is keyed: torch, numpy and `random` by (seed, epoch, batch), so that a DataLoader which shuffles and
    augments by them gives the same again. An iterator that can be iterated only once is refused for a second epoch.
    """

    def __init__(self, batches: Iterable[Any], *, accumulate: int = 1, seed: int = 0) -> None:
        if accumulate < 1:
            raise InputError(f"accumulate is {accumulate}; it must be at least 1.")
        self.batches = batches
        self.accumulate = accumulate
        self.seed = seed
        self._spent = False

    @property
    def exactness(self) -> str:
        return "not resumable (an iterator)" if isinstance(self.batches, Iterator) else "replayed (skips batches)"

    @property
    def steps_per_epoch(self) -> int | None:
        try:
            length = len(self.batches) if isinstance(self.batches, Sized) else None
        except TypeError:  # a DataLoader of a stream has the method, but no length
            length = None
        return None if length is None else -(-length // self.accumulate)

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        batches = self._begun(epoch, 0)
        return self._cut(islice(batches, start * self.accumulate, None))

    def _begun(self, epoch: int, done: int) -> Iterator[Any]:
        """The batches of an epoch; the first is number `done`."""
        for each in (self.batches, getattr(self.batches, "sampler", None), getattr(self.batches, "dataset", None)):
            if callable(set_epoch := getattr(each, "set_epoch", None)):
                set_epoch(epoch)
        if isinstance(self.batches, Iterator):
            if self._spent:
                raise InputError(
                    "The training data is an iterator: it can be gone through once only.",
                    fix="Give something that can be iterated again (a list, a DataLoader), or bound the run by steps.",
                )
            self._spent = True
        if isinstance(self.batches, list | tuple):
            return iter(self.batches)  # draws nothing
        return self._keyed(epoch, done)

    def _keyed(self, epoch: int, done: int) -> Iterator[Any]:
        number = done
        with undisturbed(keyed=True):
            seed_all(key(self.seed, BATCH, epoch, -1))  # for what draws as it begins, as workers of torch do
            iterator = iter(self.batches)
        while True:
            with undisturbed(keyed=True):
                seed_all(key(self.seed, BATCH, epoch, number))
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            number += 1
            yield batch

    def _cut(self, iterator: Iterator[Any]) -> Iterator[Window]:
        if self.accumulate == 1:
            return (Window((batch,), size_of(batch)) for batch in iterator)
        return self._windows_of_several(iterator)

    def _windows_of_several(self, iterator: Iterator[Any]) -> Iterator[Window]:
        while batches := list(islice(iterator, self.accumulate)):
            sizes = [size_of(batch) for batch in batches]
            yield Window(batches, sum(sizes), sizes)


class KeepsState(Protocol):
    """Batches that know where they are, as torchdata's StatefulDataLoader does."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class StatefulData(Replayed):
    """Batches with a state of their own: it is part of each checkpoint, and going on skips nothing."""

    exactness = "exact (state_dict)"

    def __init__(self, batches: KeepsState, *, accumulate: int = 1, seed: int = 0) -> None:
        super().__init__(batches, accumulate=accumulate, seed=seed)
        self._inside = False
        self._loaded: dict[str, Any] | None = None

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        if not start or self._loaded is None:
            return self._watched(super().windows(epoch, start))
        self.batches.load_state_dict(self._loaded)  # type: ignore[attr-defined]
        self._loaded = None
        return self._watched(self._cut(self._begun(epoch, start * self.accumulate)))

    def _watched(self, windows: Iterator[Window]) -> Iterator[Window]:
        for window in windows:
            self._inside = True
            yield window
        self._inside = False

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches.state_dict() if self._inside else None}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state["batches"]


@runtime_checkable
class Seedable(Protocol):
    """Loader of ours, which may be made without a seed, and takes that of the engine."""

    seed: int
    is_seeded: bool

    def seeded(self, seed: int) -> Iterable[Any]:
        """Return the same loader under a seed."""
        ...


def seeded(data: Iterable[Any], seed: int | None) -> tuple[Iterable[Any], int]:
    """Return the data and the seed of a run: who was given none takes that of the other; 0 if nobody was."""
    if not isinstance(data, Seedable):
        return data, seed or 0
    if data.is_seeded:
        return data, data.seed if seed is None else seed
    return (data, 0) if seed is None else (data.seeded(seed), seed)


def as_source(data: Iterable[Any] | Source, *, accumulate: int = 1, seed: int = 0) -> Source:
    """The source itself, or one that goes through the iterable anew for each epoch."""
    if isinstance(data, Source):
        if accumulate != 1:
            raise InputError("accumulate belongs to the Loader when there is one.", fix="Loader(..., accumulate=...)")
        return data
    if callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None)):
        return StatefulData(data, accumulate=accumulate, seed=seed)  # type: ignore[arg-type]
    return Replayed(data, accumulate=accumulate, seed=seed)
