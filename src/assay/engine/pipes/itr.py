"""Stages of streams, for a config or for Python: `chain([SequenceWrapper(rows), Shuffle(), Batch(8)])`.

Each is made alone and put over a stream by the chain. Where it says nothing else, it gives what comes, in the order in
which it comes, and goes on from any position at once.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from random import Random
from typing import Any, ClassVar

from assay.core.errors import ArgumentError, InputError
from assay.engine.pipes.stream import Cursor, Derived, Pass, Position, Stream, as_stream, drawing_under


class Stage(ABC):
    """What a chain puts over a stream."""

    kind: ClassVar[str] = "itr"

    @abstractmethod
    def over(self, source: Stream) -> Stream:
        """The stream that gives what this makes of the items of `source`."""


class _Cursor(Cursor):
    """Over one other cursor, whose position is its own."""

    def __init__(self, source: Cursor) -> None:
        self.source = source

    def position(self) -> Position:
        return self.source.position()

    def close(self) -> None:
        self.source.close()


# ------------------------------------------------------------------------------------------------------- item by item


class Map(Stage):
    """`function(item)` for each item. `random` says that it draws; then each item has a key of its own."""

    def __init__(self, function: Callable[[Any], Any], *, random: bool = False) -> None:
        self.function, self.random = function, random

    def over(self, source: Stream) -> Stream:
        return _Mapped(source, self)


class _Mapped(Derived):
    def __init__(self, source: Stream, stage: Map) -> None:
        super().__init__(source)
        self.stage = stage

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        given, below = at or (0, None)
        return _MapCursor(self.source.open(way, below), self.stage, way, self.lane, given)

    def draws(self) -> list[str]:
        return [*super().draws(), *([_name(self.stage.function)] if self.stage.random else [])]

    def makers(self) -> list[str]:
        return [_name(self.stage.function), *super().makers()]


class _MapCursor(_Cursor):
    def __init__(self, source: Cursor, stage: Map, way: Pass, lane: int, given: int) -> None:
        super().__init__(source)
        self.stage, self.way, self.lane, self.given = stage, way, lane, given

    def __next__(self) -> Any:
        item = next(self.source)
        try:
            if not self.stage.random:
                return self.stage.function(item)
            with drawing_under(self.way.key(self.lane, self.given)):
                return self.stage.function(item)
        except Exception as error:
            error.add_note(f"while {_name(self.stage.function)} was given item {self.given} of epoch {self.way.epoch}")
            raise
        finally:
            self.given += 1

    def position(self) -> Position:
        return [self.given, self.source.position()]


class Filter(Stage):
    """The items for which `function(item)` is true."""

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.function = function

    def over(self, source: Stream) -> Stream:
        return _Filtered(source, self.function)


class _Filtered(Derived):
    def __init__(self, source: Stream, function: Callable[[Any], bool]) -> None:
        super().__init__(source)
        self.function = function

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _FilterCursor(self.source.open(way, at), self.function)

    def length(self, way: Pass) -> None:
        return None


class _FilterCursor(_Cursor):
    def __init__(self, source: Cursor, function: Callable[[Any], bool]) -> None:
        super().__init__(source)
        self.function = function

    def __next__(self) -> Any:
        return next(item for item in self.source if self.function(item))


class FlatMap(Stage):
    """All items of `function(item)`, for each item: the lines of each file, the sentences of each text."""

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        self.function = function

    def over(self, source: Stream) -> Stream:
        return _Flat(source, self.function)


class _Flat(Derived):
    def __init__(self, source: Stream, function: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(source)
        self.function = function

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        below, inside = at or (None, 0)
        return _FlatCursor(self.source.open(way, below), self.function, inside)

    def length(self, way: Pass) -> None:
        return None

    def makers(self) -> list[str]:
        return [_name(self.function), *super().makers()]


class _FlatCursor(_Cursor):
    """The position is that of the item being taken apart, and how many of its parts were given."""

    def __init__(self, source: Cursor, function: Callable[[Any], Iterable[Any]], inside: int) -> None:
        super().__init__(source)
        self.function, self.inside = function, 0
        self.outer: Position = source.position()
        self.parts: Iterator[Any] = iter(())
        if inside:
            self._take_apart()
            for _ in range(inside):
                next(self.parts, None)
            self.inside = inside

    def _take_apart(self) -> None:
        self.outer, self.inside = self.source.position(), 0
        self.parts = iter(self.function(next(self.source)))

    def __next__(self) -> Any:
        while True:
            for part in self.parts:
                self.inside += 1
                return part
            self._take_apart()

    def position(self) -> Position:
        return [self.outer, self.inside]


# ---------------------------------------------------------------------------------------------------- several at a time


class Batch(Stage):
    """Lists of `batch_size` items; the last one may be shorter, or is left out with `drop_last`."""

    def __init__(self, batch_size: int, *, drop_last: bool = False) -> None:
        self.batch_size = _at_least_one(batch_size, "batch_size")
        self.drop_last = drop_last

    def over(self, source: Stream) -> Stream:
        return _Batched(source, self.batch_size, self.drop_last)


class _Batched(Derived):
    def __init__(self, source: Stream, size: int, drop_last: bool) -> None:
        super().__init__(source)
        self.size, self.drop_last = size, drop_last

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _BatchCursor(self.source.open(way, at), self.size, self.drop_last)

    def length(self, way: Pass) -> int | None:
        length = self.source.length(way)
        if length is None:
            return None
        return length // self.size if self.drop_last else -(-length // self.size)


class _BatchCursor(_Cursor):
    def __init__(self, source: Cursor, size: int, drop_last: bool) -> None:
        super().__init__(source)
        self.size, self.drop_last = size, drop_last

    def __next__(self) -> Any:
        batch = _up_to(self.source, self.size)
        if not batch or (self.drop_last and len(batch) < self.size):
            raise StopIteration
        return batch


class _Blocks(Derived):
    """Blocks of items, each put in another order: the position is where the block began, and what was given of it."""

    def __init__(self, source: Stream, size: int) -> None:
        super().__init__(source)
        self.size = size

    @abstractmethod
    def ordered(self, items: list[Any], random: Random) -> list[Any]:
        """What to give, in order, of a block of items."""

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        number, below, inside = at or (0, None, 0)
        return _BlockCursor(self.source.open(way, below), self, way, number, inside)


class _BlockCursor(_Cursor):
    def __init__(self, source: Cursor, stream: _Blocks, way: Pass, number: int, inside: int) -> None:
        super().__init__(source)
        self.stream, self.way = stream, way
        self.number, self.inside, self.block = number, 0, list[Any]()
        self.began = source.position()
        if inside:
            self._read()
            self.inside = inside

    def _read(self) -> None:
        self.began, self.inside = self.source.position(), 0
        random = Random(self.way.key(self.stream.lane, self.number))
        self.block = self.stream.ordered(_up_to(self.source, self.stream.size), random)
        self.number += 1

    def __next__(self) -> Any:
        if self.inside >= len(self.block):
            self._read()
            if not self.block:
                raise StopIteration
        self.inside += 1
        return self.block[self.inside - 1]

    def position(self) -> Position:
        if self.inside >= len(self.block):  # nothing of a block is held
            return [self.number, self.source.position(), 0]
        return [self.number - 1, self.began, self.inside]


class Shuffle(Stage):
    """Shuffle within blocks of `buffer` items, anew in each epoch. The order is that of the seed, epoch and shard.

    Blocks, not a sliding buffer: a block can be filled again from where it began, so that nothing has to be kept. The
    order of files, or a second `Shuffle` before a stage that takes them apart, mixes what lies further apart.
    """

    def __init__(self, buffer: int = 1000) -> None:
        self.buffer = _at_least_one(buffer, "buffer")

    def over(self, source: Stream) -> Stream:
        return _Shuffled(source, self.buffer)


class _Shuffled(_Blocks):
    def ordered(self, items: list[Any], random: Random) -> list[Any]:
        random.shuffle(items)
        return items


class Bucket(Stage):
    """Batches of items of like length: blocks of `buffer` items are sorted by `length(item)`, cut, and shuffled.

    Items of one length stay in their order; with a `Shuffle` before, that is another one in each epoch.
    """

    def __init__(self, batch_size: int, *, buffer: int = 1000, length: Callable[[Any], int] = len) -> None:
        self.batch_size = _at_least_one(batch_size, "batch_size")
        self.buffer = _at_least_one(buffer, "buffer")
        self.length = length
        if buffer < batch_size:
            raise ArgumentError(
                f"`buffer` is {buffer}, less than a batch of {batch_size}",
                inside=("buffer",),
                fix="a hundred batches is usual",
            )

    def over(self, source: Stream) -> Stream:
        return _Bucketed(source, self)


class _Bucketed(_Blocks):
    def __init__(self, source: Stream, stage: Bucket) -> None:
        super().__init__(source, stage.buffer)
        self.stage = stage

    def ordered(self, items: list[Any], random: Random) -> list[Any]:
        items.sort(key=self.stage.length)
        size = self.stage.batch_size
        batches = [items[i : i + size] for i in range(0, len(items), size)]
        random.shuffle(batches)
        return batches

    def length(self, way: Pass) -> int | None:
        length = self.source.length(way)
        if length is None:
            return None
        blocks, rest = divmod(length, self.size)
        return blocks * -(-self.size // self.stage.batch_size) + -(-rest // self.stage.batch_size)


# ----------------------------------------------------------------------------------------------------- shards, lengths


class SplitByWorker(Stage):
    """Every `n`-th item, where `n` workers of `m` ranks share the work: together they give each item once."""

    def over(self, source: Stream) -> Stream:
        return _Split(source)


class _Split(Derived):
    def __init__(self, source: Stream) -> None:
        if source.is_sharded:
            raise ArgumentError("SplitByWorker splits what is split already", inside=(), fix="one is enough")
        super().__init__(source)
        self.is_sharded = True

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        below, seen = at or (None, 0)
        return _SplitCursor(self.source.open(way.whole(), below), way, seen)

    def length(self, way: Pass) -> int | None:
        length = self.source.length(way.whole())
        return None if length is None else -(-(length - way.shard) // way.shards)


class _SplitCursor(_Cursor):
    def __init__(self, source: Cursor, way: Pass, seen: int) -> None:
        super().__init__(source)
        self.way, self.seen = way, seen

    def __next__(self) -> Any:
        for item in self.source:
            self.seen += 1
            if (self.seen - 1) % self.way.shards == self.way.shard:
                return item
        raise StopIteration

    def position(self) -> Position:
        return [self.source.position(), self.seen]


class Take(Stage):
    """The first `count` items of an epoch."""

    def __init__(self, count: int) -> None:
        self.count = _at_least_one(count, "count")

    def over(self, source: Stream) -> Stream:
        return _Taken(source, self.count)


class _Taken(Derived):
    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self.count = count

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        given, below = at or (0, None)
        return _TakeCursor(self.source.open(way, below), self.count, given)

    def length(self, way: Pass) -> int | None:
        length = self.source.length(way)
        return None if length is None else min(length, self.count)


class _TakeCursor(_Cursor):
    def __init__(self, source: Cursor, count: int, given: int) -> None:
        super().__init__(source)
        self.count, self.given = count, given

    def __next__(self) -> Any:
        if self.given >= self.count:
            raise StopIteration
        item = next(self.source)
        self.given += 1
        return item

    def position(self) -> Position:
        return [self.given, self.source.position()]


class Length(Stage):
    """Says how many items there are, where nobody else can. If there are not that many, the epoch ends in an error."""

    def __init__(self, length: int) -> None:
        if length < 0:
            raise ArgumentError(f"`length` is {length}; it cannot be negative", inside=("length",))
        self.length = length

    def over(self, source: Stream) -> Stream:
        return _Lengthed(source, self.length)


class _Lengthed(Derived):
    def __init__(self, source: Stream, said: int) -> None:
        super().__init__(source)
        self.said = said

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        given, below = at or (0, None)
        return _LengthCursor(self.source.open(way, below), way, self.said, given)

    def length(self, way: Pass) -> int | None:
        return self.said if way.shards == 1 else None


class _LengthCursor(_Cursor):
    def __init__(self, source: Cursor, way: Pass, said: int, given: int) -> None:
        super().__init__(source)
        self.way, self.said, self.given = way, said, given

    def __next__(self) -> Any:
        for item in self.source:
            self.given += 1
            if self.given > self.said:
                raise InputError(
                    f"Length({self.said}) is too little: there are more items.", fix="Count them, or leave it out."
                )
            return item
        if self.way.shards == 1 and self.given < self.said:
            raise InputError(
                f"Length({self.said}): there are only {self.given} items.", fix=f"Say Length({self.given})."
            )
        raise StopIteration

    def position(self) -> Position:
        return [self.given, self.source.position()]


# ------------------------------------------------------------------------------------------------------ several streams


class Concat(Stream):
    """One stream after the other."""

    def __init__(self, streams: Sequence[Any]) -> None:
        self.streams = _streams(streams)
        self.lane = max(stream.lane for stream in self.streams) + 1
        self.is_sharded = _all_or_none_sharded(self.streams)

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _ConcatCursor(self.streams, way, *(at or (0, None)))

    def length(self, way: Pass) -> int | None:
        return _sum([stream.length(way) for stream in self.streams])

    def replayed(self) -> list[str]:
        return [name for stream in self.streams for name in stream.replayed()]

    def draws(self) -> list[str]:
        return [name for stream in self.streams for name in stream.draws()]

    def makers(self) -> list[str]:
        return [name for stream in self.streams for name in stream.makers()]


class _ConcatCursor(Cursor):
    def __init__(self, streams: Sequence[Stream], way: Pass, number: int, at: Position | None) -> None:
        self.streams, self.way, self.number = streams, way, number
        self.cursor = streams[number].open(way.within(number), at)

    def __next__(self) -> Any:
        while True:
            for item in self.cursor:
                return item
            if self.number + 1 == len(self.streams):
                raise StopIteration
            self.cursor.close()
            self.number += 1
            self.cursor = self.streams[self.number].open(self.way.within(self.number))

    def position(self) -> Position:
        return [self.number, self.cursor.position()]

    def close(self) -> None:
        self.cursor.close()


class Mix(Stream):
    """Items of several streams, drawn by weight. An epoch ends with the first stream that is at its end.

    `repeat`: a stream that ends begins anew, until each has ended once.
    """

    def __init__(self, streams: Sequence[Any], weights: Sequence[float], *, repeat: bool = False) -> None:
        self.streams = _streams(streams)
        if len(weights) != len(self.streams):
            raise ArgumentError(
                f"{len(weights)} `weights` for {len(self.streams)} streams",
                inside=("weights",),
                fix="give one for each",
            )
        if any(not 0 < weight < float("inf") for weight in weights):
            raise ArgumentError(
                f"`weights` are {list(weights)}; each must be greater than 0",
                inside=("weights",),
                fix="leave that stream out",
            )
        self.bounds = list(accumulate(float(weight) for weight in weights))
        self.repeat = repeat
        self.lane = max(stream.lane for stream in self.streams) + 1
        self.is_sharded = _all_or_none_sharded(self.streams)

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _MixCursor(self, way, at)

    def replayed(self) -> list[str]:
        return [name for stream in self.streams for name in stream.replayed()]

    def draws(self) -> list[str]:
        return [name for stream in self.streams for name in stream.draws()]

    def makers(self) -> list[str]:
        return [name for stream in self.streams for name in stream.makers()]


class _MixCursor(Cursor):
    def __init__(self, stream: Mix, way: Pass, at: Position | None) -> None:
        self.stream, self.way = stream, way
        self.given: int
        self.given, below = at or (0, [(0, None)] * len(stream.streams))
        self.rounds = [rounds for rounds, _ in below]
        self.cursors = [self._open(i, position) for i, (_, position) in enumerate(below)]

    def _open(self, i: int, at: Position | None = None) -> Cursor:
        return self.stream.streams[i].open(self.way.within(i + len(self.rounds) * self.rounds[i]), at)

    def __next__(self) -> Any:
        point = Random(self.way.key(self.stream.lane, self.given)).random() * self.stream.bounds[-1]
        chosen = next(i for i, bound in enumerate(self.stream.bounds) if point < bound)
        for _ in range(2):  # once more where it begins anew
            for item in self.cursors[chosen]:
                self.given += 1
                return item
            self.rounds[chosen] += 1
            if not self.stream.repeat or all(self.rounds):
                raise StopIteration
            self.cursors[chosen].close()
            self.cursors[chosen] = self._open(chosen)
        raise StopIteration

    def position(self) -> Position:
        below = [[rounds, cursor.position()] for rounds, cursor in zip(self.rounds, self.cursors, strict=True)]
        return [self.given, below]

    def close(self) -> None:
        for cursor in self.cursors:
            cursor.close()


# ------------------------------------------------------------------------------------------------------------- ahead


class Prefetch(Stage):
    """Works `count` items ahead in a thread: for stages that wait for a file or a network. Work is for workers."""

    def __init__(self, count: int = 8) -> None:
        self.count = _at_least_one(count, "count")

    def over(self, source: Stream) -> Stream:
        drawing = [*source.draws(), *source.replayed()]
        if drawing:
            raise ArgumentError(
                f"Prefetch works in a thread, but {drawing[0]} before it may draw random numbers, which threads share",
                inside=(),
                fix="put Prefetch before it, or load with workers",
            )
        return _Ahead(source, self.count)


class _Ahead(Derived):
    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self.count = count

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _AheadCursor(self.source.open(way, at), self.count)


class _AheadCursor(Cursor):
    def __init__(self, source: Cursor, count: int) -> None:
        self.source, self.at = source, source.position()
        self.ready: queue.Queue[tuple[str, Any, Position]] = queue.Queue(count)
        self.stopped, self.ended = threading.Event(), False
        self.thread = threading.Thread(target=self._read, name="assay-prefetch", daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for item in self.source:
                if not self._put(("item", item, self.source.position())):
                    return
            self._put(("end", None, self.source.position()))
        except BaseException as error:  # raised where the item would have been given
            self._put(("error", error, None))

    def _put(self, message: tuple[str, Any, Position]) -> bool:
        while not self.stopped.is_set():
            try:
                self.ready.put(message, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        kind, what, position = self.ready.get()
        if kind == "item":
            self.at = position
            return what
        self.ended = True
        if kind == "error":
            raise what
        self.at = position
        raise StopIteration

    def position(self) -> Position:
        return self.at

    def close(self) -> None:
        self.stopped.set()
        self.thread.join()
        self.source.close()


def _up_to(items: Iterable[Any], count: int) -> list[Any]:
    return list(islice(items, count))


def _at_least_one(number: int, name: str) -> int:
    if number < 1:
        raise ArgumentError(f"`{name}` is {number}; it must be at least 1", inside=(name,))
    return number


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _sum(lengths: Sequence[int | None]) -> int | None:
    return None if None in lengths else sum(length for length in lengths if length is not None)


def _streams(things: Sequence[Any]) -> list[Stream]:
    if not things:
        raise ArgumentError("there is no stream to join", inside=("streams",))
    return [as_stream(thing) for thing in things]


def _all_or_none_sharded(streams: Sequence[Stream]) -> bool:
    sharded = {stream.is_sharded for stream in streams}
    if len(sharded) > 1:
        raise ArgumentError(
            "some of the streams have a SplitByWorker and some have none",
            inside=("streams",),
            fix="put one SplitByWorker after what joins them",
        )
    return sharded.pop()
