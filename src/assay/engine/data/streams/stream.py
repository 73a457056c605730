"""Streams that can be opened at any position of an epoch, and their cursors.

What a stream gives is a function of (seed, epoch, shard). A cursor goes through one epoch and
knows, after each item, the position from which another cursor goes on: a few numbers, never the
items themselves. A stage that cannot tell its position (a user's generator) is replayed: gone
through again, and its items dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias
from zlib import crc32

from torch.utils.data import IterableDataset

from assay.core.errors import ArgumentError, InputError
from assay.engine.data.randomness import epoch_followers, set_epoch
from assay.engine.numerics.seed import PIPE, key_all, restore_generators, stream_key

Position: TypeAlias = Any
"""Where a cursor is: numbers and lists of them, which a checkpoint keeps as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass through the data: seed, split, epoch, and the shard out of several."""

    seed: int = 0
    split: str = "train"
    epoch: int = 0
    shard: int = 0
    shards: int = 1
    branch: int = 0  # which of several streams that were joined
    is_keyed: bool = True  # False in a thread, which shares the global generators with the training

    def within(self, branch: int) -> Pass:
        """Return the same pass in one of the streams that a stage joins."""
        return replace(self, branch=crc32(f"{self.branch} {branch}".encode()))

    def whole(self) -> Pass:
        """Return the pass before it is split, in which all shards draw alike."""
        return replace(self, shard=0, shards=1)

    def draw_under(self, lane: int, number: int) -> None:
        """Key the global generators for item `number` of the stage at `lane`."""
        if self.is_keyed:
            key_all(self.key(lane, number))

    def key(self, lane: int, number: int) -> int:
        """Return the key of draw `number` of the stage at `lane`."""
        place = crc32(f"{self.split} {self.branch} {lane} {self.shard}".encode())
        return stream_key(self.seed, PIPE, place, self.epoch, number)


class Cursor(ABC):
    """Iterator over one epoch of a stream."""

    def __iter__(self) -> Iterator[Any]:
        return self

    @abstractmethod
    def __next__(self) -> Any: ...

    @abstractmethod
    def position(self) -> Position:
        """Return the position: `open` with it gives the items that are still to come."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release threads and files."""


class Stream(ABC):
    """Ordered items that can be opened at any position; `lane` keys what a stage draws."""

    lane: int = 0
    is_sharded: bool = False
    """Whether each shard gives items of its own, so that the shards together give each once."""

    @abstractmethod
    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        """Return a cursor at the begin of the epoch, or at a position of another cursor."""

    def length(self, way: Pass) -> int | None:
        """Return the number of items of a pass; None if it is unknown."""
        return None

    def replayed_stages(self) -> list[str]:
        """Return the names of stages that cannot open at a position, and are replayed."""
        return []

    def draws(self) -> list[str]:
        """Return the names of stages that draw random numbers."""
        return []

    def makers(self) -> list[str]:
        """Return the names of stages that make new items, the last one first."""
        return []

    def __iter__(self) -> Iterator[Any]:
        with restore_generators():
            cursor = self.open(Pass())
        try:
            while True:
                with restore_generators():
                    try:
                        item = next(cursor)
                    except StopIteration:
                        return
                yield item
        finally:
            cursor.close()


class DerivedStream(Stream):
    """Stream made from another one, with the same properties unless overridden."""

    def __init__(self, source: Stream) -> None:
        self.source = source
        self.lane = source.lane + 1
        self.is_sharded = source.is_sharded

    def length(self, way: Pass) -> int | None:
        return self.source.length(way)

    def replayed_stages(self) -> list[str]:
        return self.source.replayed_stages()

    def draws(self) -> list[str]:
        return self.source.draws()

    def makers(self) -> list[str]:
        return self.source.makers()


class SequenceStream(Stream):
    """Stream of the items of a sequence in order; a position is an index."""

    def __init__(self, sequence: Sequence[Any]) -> None:
        self.sequence = sequence

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        if way.split == "train":
            set_epoch(epoch_followers(self.sequence), way.epoch)
        return _SequenceCursor(self, way, at or 0)

    def length(self, way: Pass) -> int:
        return len(self.sequence)

    def draws(self) -> list[str]:
        return [type(self.sequence).__name__] if getattr(self.sequence, "random", False) else []

    def makers(self) -> list[str]:
        return [type(self.sequence).__name__]


class _SequenceCursor(Cursor):
    def __init__(self, stream: SequenceStream, way: Pass, index: int) -> None:
        self.sequence = stream.sequence
        self.way = way
        self.index = index
        # Nothing of the user's is called for an item of these.
        self.is_plain = isinstance(stream.sequence, list | tuple | range)

    def __next__(self) -> Any:
        if self.index >= len(self.sequence):
            raise StopIteration
        index = self.index
        self.index += 1
        if not self.is_plain:
            self.way.draw_under(0, index)
        return self.sequence[index]

    def position(self) -> Position:
        return self.index


class IterableStream(Stream):
    """Stream of a re-iterable object; a position is reached by replay."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        self._set_epoch(way)
        return ReplayCursor(lambda: iter(self.iterable), way, self.lane, at or 0)

    def _set_epoch(self, way: Pass) -> None:
        set_epoch(epoch_followers(self.iterable), way.epoch)

    def length(self, way: Pass) -> int | None:
        self._set_epoch(way)
        try:
            return len(self.iterable)  # type: ignore[arg-type]
        except TypeError:
            return None

    def replayed_stages(self) -> list[str]:
        return [type(self.iterable).__name__]

    def makers(self) -> list[str]:
        return [type(self.iterable).__name__]


def as_stream(thing: Any) -> Stream:
    """Return a stream over a stream, a sequence or a re-iterable object."""
    if isinstance(thing, Stream):
        return thing
    if (
        hasattr(thing, "__len__")
        and hasattr(thing, "__getitem__")
        and not isinstance(thing, IterableDataset | dict)
    ):
        return SequenceStream(thing)
    if isinstance(thing, Iterator):
        raise InputError(
            f"A {type(thing).__name__} can be gone through once only.",
            fix="Give something that can be iterated again: a list, a class with __iter__.",
        )
    if isinstance(thing, Iterable):
        return IterableStream(thing)
    raise InputError(
        f"A {type(thing).__name__} can neither be iterated nor asked for an item.",
        fix=(
            "Begin with a sequence, such as SequenceWrapper([...]), or with something that can be "
            "iterated."
        ),
    )


class FunctionStream(DerivedStream):
    """Stream made by a function from iterator to iterator: `def parse(items): ... yield ...`."""

    def __init__(
        self, source: Stream, function: Callable[[Iterable[Any]], Iterable[Any]], name: str
    ) -> None:
        super().__init__(source)
        self.function, self.name = function, name

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        items = self.source.open(way)
        return ReplayCursor(
            lambda: iter(self.function(items)), way, self.lane, at or 0, items.close
        )

    def length(self, way: Pass) -> None:
        return None

    def replayed_stages(self) -> list[str]:
        return [*super().replayed_stages(), self.name]

    def makers(self) -> list[str]:
        return [self.name, *super().makers()]


class ReplayCursor(Cursor):
    """Cursor over an iterator that is replayed; the position is the number of items given.

    Each item is drawn for under its own key, so that what is given after a replay is what would
    have been given.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[Any]],
        way: Pass,
        lane: int,
        skip: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.way = way
        self.lane = lane
        self.given = 0
        self.close_source = close
        way.draw_under(lane, 0)
        self.iterator = make()
        for _ in range(skip):
            next(self, None)

    def __next__(self) -> Any:
        self.way.draw_under(self.lane, self.given)
        item = next(self.iterator)
        self.given += 1
        return item

    def position(self) -> Position:
        return self.given

    def close(self) -> None:
        close = getattr(self.iterator, "close", None)
        if close is not None:
            close()
        self.close_source()


class StreamStage(ABC):
    """Stage that a chain puts over a stream."""

    def over(self, source: Stream) -> Stream:
        """Return the stream that this stage makes of the items of `source`."""
        return StagedStream(source, self)

    @abstractmethod
    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        """Return a cursor as `Stream.open` does, over one of `source`; `lane` keys its draws."""

    def length(self, source: Stream, way: Pass) -> int | None:
        """Return the number of items made of a pass of `source`; None if it is unknown."""
        return source.length(way)

    def draws(self) -> list[str]:
        """Return the names of what draws random numbers."""
        return []

    def makers(self) -> list[str]:
        """Return the names of what makes new items."""
        return []


class StagedStream(DerivedStream):
    """Stream that a stage makes of another one."""

    def __init__(self, source: Stream, stage: StreamStage) -> None:
        super().__init__(source)
        self.stage = stage

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return self.stage.open(self.source, way, at, self.lane)

    def length(self, way: Pass) -> int | None:
        return self.stage.length(self.source, way)

    def draws(self) -> list[str]:
        return [*super().draws(), *self.stage.draws()]

    def makers(self) -> list[str]:
        return [*self.stage.makers(), *super().makers()]


class OverOne(Cursor):
    """Cursor over one other cursor, with the same position; `items` are made of that one's."""

    def __init__(self, source: Cursor, items: Iterable[Any] = ()) -> None:
        self.source = source
        self.items = iter(items)

    def __next__(self) -> Any:
        return next(self.items)

    def position(self) -> Position:
        return self.source.position()

    def close(self) -> None:
        self.source.close()


class CountingCursor(OverOne):
    """Cursor over another one that also knows how many items it has given."""

    def __init__(self, source: Cursor, given: int, items: Iterable[Any] = ()) -> None:
        super().__init__(source, items)
        self.given = given

    def __next__(self) -> Any:
        item = next(self.items)
        self.given += 1
        return item

    def position(self) -> Position:
        return [self.given, self.source.position()]


def up_to(items: Iterable[Any], count: int) -> list[Any]:
    return list(islice(items, count))


def at_least_one(number: int, name: str) -> int:
    if number < 1:
        raise ArgumentError(f"`{name}` is {number}; it must be at least 1", inside=(name,))
    return number


def function_name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
