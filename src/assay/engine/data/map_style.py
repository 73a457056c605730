"""Sequences (items by index, for a `Loader`), and stages that make a sequence of a sequence."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

from assay.core.errors import ArgumentError
from assay.engine.data.plan import Plan
from assay.engine.data.streams.stream import Pass, Stream

TELL_EVERY_S = 10.0

logger = logging.getLogger("assay")

__all__ = [
    "Cache",
    "ConcatSequences",
    "FilterSequence",
    "MapSequence",
    "RandomSplit",
    "Select",
    "SequenceStage",
    "SequenceWrapper",
    "StreamToSequence",
]


class SequenceStage(ABC):
    """Stage that a chain puts over a sequence."""

    @abstractmethod
    def over(self, source: Sequence[Any]) -> Sequence[Any]:
        """Return the sequence that this stage makes of the items of `source`."""


class SequenceWrapper(Sequence[Any]):
    """Source of a chain: a list, or anything with a length and items by index."""

    def __init__(self, datapipe: Sequence[Any]) -> None:
        if not (hasattr(datapipe, "__len__") and hasattr(datapipe, "__getitem__")):
            raise ArgumentError(
                f"`datapipe` is a {type(datapipe).__name__}, which has no length or no items by "
                "index",
                inside=("datapipe",),
                fix="give a list; what can only be iterated needs no wrapper",
            )
        self.items = datapipe

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


class MapSequence(SequenceStage):
    """Stage that gives `function(item)` for each item, when it is asked for.

    Each item is drawn for under a key of its own. `random` says that the function draws.
    """

    def __init__(self, function: Callable[[Any], Any], *, random: bool = False) -> None:
        self.function, self.random = function, random

    def over(self, source: Sequence[Any]) -> Sequence[Any]:
        return _MappedSequence(
            source, self.function, self.random or getattr(source, "random", False)
        )


class _MappedSequence(Sequence[Any]):
    def __init__(self, source: Sequence[Any], function: Callable[[Any], Any], random: bool) -> None:
        self.source = source
        self.function = function
        self.random = random

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> Any:
        return self.function(self.source[index])


class FilterSequence(SequenceStage):
    """Stage that keeps the items for which `function(item)` is true.

    All items are tried once, when the first is asked for.
    """

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.function = function

    def over(self, source: Sequence[Any]) -> Sequence[Any]:
        return _SelectedSequence(
            source, lambda: [i for i in range(len(source)) if self.function(source[i])]
        )


class Select(SequenceStage):
    """Stage that gives the items at `indices`, in that order."""

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = indices

    def over(self, source: Sequence[Any]) -> Sequence[Any]:
        beyond = next((index for index in self.indices if not 0 <= index < len(source)), None)
        if beyond is not None:
            raise ArgumentError(
                f"`indices` has {beyond}, but there are {len(source)} items", inside=("indices",)
            )
        return _SelectedSequence(source, lambda: list(self.indices))


class RandomSplit(SequenceStage):
    """Stage that keeps part number `part` of a random split into `sizes`; a function of `seed`.

    Sizes are counts of items, or fractions of them, rounded down. What is over belongs to no part.
    """

    def __init__(self, sizes: Sequence[int | float], part: int, *, seed: int = 0) -> None:
        if not 0 <= part < len(sizes):
            raise ArgumentError(
                f"`part` is {part}, but there are {len(sizes)} sizes", inside=("part",)
            )
        if any(size < 0 for size in sizes):
            raise ArgumentError(
                f"`sizes` are {list(sizes)}; none can be negative", inside=("sizes",)
            )
        self.sizes, self.part, self.seed = sizes, part, seed

    def over(self, source: Sequence[Any]) -> Sequence[Any]:
        counts = [
            int(size * len(source)) if isinstance(size, float) else size for size in self.sizes
        ]
        if sum(counts) > len(source):
            raise ArgumentError(
                f"`sizes` ask for {sum(counts)} of {len(source)} items", inside=("sizes",)
            )
        plan = Plan(len(source), seed=self.seed, shuffle=True)
        start = sum(counts[: self.part])
        return _SelectedSequence(source, lambda: plan.indices(0, start, counts[self.part]).tolist())


class _SelectedSequence(Sequence[Any]):
    def __init__(self, source: Sequence[Any], choose: Callable[[], list[int]]) -> None:
        self.source, self.choose = source, choose
        self.random = getattr(source, "random", False)
        self.chosen: list[int] | None = None

    def _indices(self) -> list[int]:
        if self.chosen is None:
            self.chosen = self.choose()
        return self.chosen

    def __len__(self) -> int:
        return len(self._indices())

    def __getitem__(self, index: Any) -> Any:
        return self.source[self._indices()[index]]


class ConcatSequences(Sequence[Any]):
    """Source that joins sequences one after the other."""

    def __init__(self, sequences: Sequence[Sequence[Any]]) -> None:
        self.sequences = list(sequences)
        self.random = any(getattr(sequence, "random", False) for sequence in sequences)
        self.ends = [sum(map(len, self.sequences[: i + 1])) for i in range(len(self.sequences))]

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, index: Any) -> Any:
        where = range(len(self))[index]
        i = next(i for i, end in enumerate(self.ends) if where < end)
        return self.sequences[i][where - (self.ends[i - 1] if i else 0)]


class Cache(SequenceStage):
    """Stage that keeps every item once it is made; refused after a stage that draws."""

    def over(self, source: Sequence[Any]) -> Sequence[Any]:
        if getattr(source, "random", False):
            raise ArgumentError(
                "Cache would keep one random draw of each item for all epochs",
                inside=(),
                fix="put Cache before the stage that draws",
            )
        return _CachedSequence(source)


class _CachedSequence(Sequence[Any]):
    def __init__(self, source: Sequence[Any]) -> None:
        self.source = source
        self.kept = dict[int, Any]()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self.source))[index]
        if index not in self.kept:
            self.kept[index] = self.source[index]
        return self.kept[index]


class StreamToSequence(SequenceStage):
    """Stage that reads a stream once into memory, as a sequence."""

    def over(self, source: Any) -> Sequence[Any]:
        return _ReadSequence(source)


class _ReadSequence(Sequence[Any]):
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.kept: list[Any] | None = None

    def _items(self) -> list[Any]:
        if self.kept is None:
            self.kept = list(self._read())
            logger.info("read %d items into memory", len(self.kept))
        return self.kept

    def _read(self) -> Iterator[Any]:
        told = monotonic()
        length = self.stream.length(Pass())
        for i, item in enumerate(self.stream):
            if monotonic() - told > TELL_EVERY_S:
                told = monotonic()
                logger.info("reading into memory: %d%s items", i, f" of {length}" if length else "")
            yield item

    def __len__(self) -> int:
        return len(self._items())

    def __getitem__(self, index: Any) -> Any:
        return self._items()[index]
