"""Windows of micro-batches: what one optimizer step trains on, whatever the batches come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from assay.core.errors import InputError
from assay.engine.batches import size_of


class Window(NamedTuple):
    """The batches of one optimizer step. `sizes`: samples of each; None when there is one batch only."""

    batches: Sequence[Any]
    samples: int
    sizes: Sequence[int] | None = None


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
    """Any iterable of batches. Going on in the middle of an epoch skips, so it is exact only if iterating is.

    An iterator that can be iterated only once is refused for a second epoch.
    """

    exactness = "replayed (skips batches)"

    def __init__(self, batches: Iterable[Any], *, accumulate: int = 1) -> None:
        if accumulate < 1:
            raise InputError(f"accumulate is {accumulate}; it must be at least 1.")
        self.batches = batches
        self.accumulate = accumulate
        self._spent = False

    @property
    def steps_per_epoch(self) -> int | None:
        try:
            length = len(self.batches) if isinstance(self.batches, Sized) else None
        except TypeError:  # a DataLoader of a stream has the method, but no length
            length = None
        return None if length is None else -(-length // self.accumulate)

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)
        iterator = iter(self.batches)
        if iterator is self.batches:
            if self._spent:
                raise InputError(
                    "The training data is an iterator: it can be gone through once only.",
                    fix="Give something that can be iterated again (a list, a DataLoader), or bound the run by steps.",
                )
            self._spent = True
        if self.accumulate == 1:
            return (Window((batch,), size_of(batch)) for batch in islice(iterator, start, None))
        return self._windows_of_several(islice(iterator, start * self.accumulate, None))

    def _windows_of_several(self, iterator: Iterator[Any]) -> Iterator[Window]:
        while batches := list(islice(iterator, self.accumulate)):
            sizes = [size_of(batch) for batch in batches]
            yield Window(batches, sum(sizes), sizes)


def as_source(data: Iterable[Any] | Source, *, accumulate: int = 1) -> Source:
    """The source itself, or one that goes through the iterable anew for each epoch."""
    if isinstance(data, Source):
        if accumulate != 1:
            raise InputError("accumulate belongs to the Loader when there is one.", fix="Loader(..., accumulate=...)")
        return data
    return Replayed(data, accumulate=accumulate)
