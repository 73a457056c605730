"""Stages that work on one item after the other: map, filter, count, share out, read ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from assay.core.errors import ArgumentError, InputError
from assay.engine.data.streams.stream import (
    Cursor,
    DerivedStream,
    OverOne,
    Pass,
    Position,
    Stream,
    StreamStage,
    at_least_one,
    drawing_under,
    name_of,
)


class Map(StreamStage):
    """Stage that yields `function(item)`. `random`: each item is drawn for under its own key."""

    def __init__(self, function: Callable[[Any], Any], *, random: bool = False) -> None:
        self.function, self.random = function, random

    def over(self, source: Stream) -> Stream:
        return _MappedStream(source, self)


class _MappedStream(DerivedStream):
    def __init__(self, source: Stream, stage: Map) -> None:
        super().__init__(source)
        self.stage = stage

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        given, below = at or (0, None)
        return _MapCursor(self.source.open(way, below), self.stage, way, self.lane, given)

    def draws(self) -> list[str]:
        return [*super().draws(), *([name_of(self.stage.function)] if self.stage.random else [])]

    def makers(self) -> list[str]:
        return [name_of(self.stage.function), *super().makers()]


class _MapCursor(OverOne):
    def __init__(self, source: Cursor, stage: Map, way: Pass, lane: int, given: int) -> None:
        super().__init__(source)
        self.stage = stage
        self.way = way
        self.lane = lane
        self.given = given

    def __next__(self) -> Any:
        item = next(self.source)
        try:
            if not self.stage.random:
                return self.stage.function(item)
            with drawing_under(self.way.key(self.lane, self.given)):
                return self.stage.function(item)
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(
                f"while {name_of(self.stage.function)} was given item {self.given} of epoch "
                f"{self.way.epoch}"
            )
            raise
        finally:
            self.given += 1

    def position(self) -> Position:
        return [self.given, self.source.position()]


class Filter(StreamStage):
    """Stage that keeps the items for which `function(item)` is true."""

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.function = function

    def over(self, source: Stream) -> Stream:
        return _Filtered(source, self.function)


class _Filtered(DerivedStream):
    def __init__(self, source: Stream, function: Callable[[Any], bool]) -> None:
        super().__init__(source)
        self.function = function

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _FilterCursor(self.source.open(way, at), self.function)

    def length(self, way: Pass) -> None:
        return None


class _FilterCursor(OverOne):
    def __init__(self, source: Cursor, function: Callable[[Any], bool]) -> None:
        super().__init__(source)
        self.function = function

    def __next__(self) -> Any:
        return next(item for item in self.source if self.function(item))


class FlatMap(StreamStage):
    """Stage that yields all items of `function(item)`, such as the lines of each file."""

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        self.function = function

    def over(self, source: Stream) -> Stream:
        return _Flat(source, self.function)


class _Flat(DerivedStream):
    def __init__(self, source: Stream, function: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(source)
        self.function = function

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        below, inside = at or (None, 0)
        return _FlatCursor(self.source.open(way, below), self.function, inside)

    def length(self, way: Pass) -> None:
        return None

    def makers(self) -> list[str]:
        return [name_of(self.function), *super().makers()]


class _FlatCursor(OverOne):
    """Cursor whose position is that of the item being taken apart, and the parts given of it."""

    def __init__(
        self, source: Cursor, function: Callable[[Any], Iterable[Any]], inside: int
    ) -> None:
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
        self.outer = self.source.position()
        self.inside = 0
        self.parts = iter(self.function(next(self.source)))

    def __next__(self) -> Any:
        while True:
            for part in self.parts:
                self.inside += 1
                return part
            self._take_apart()

    def position(self) -> Position:
        return [self.outer, self.inside]


class Take(StreamStage):
    """Stage that ends an epoch after `count` items."""

    def __init__(self, count: int) -> None:
        self.count = at_least_one(count, "count")

    def over(self, source: Stream) -> Stream:
        return _Taken(source, self.count)


class _Taken(DerivedStream):
    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self.count = count

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        given, below = at or (0, None)
        return _TakeCursor(self.source.open(way, below), self.count, given)

    def length(self, way: Pass) -> int | None:
        length = self.source.length(way)
        return None if length is None else min(length, self.count)


class _TakeCursor(OverOne):
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


class Length(StreamStage):
    """Stage that declares the number of items; an epoch with another number ends in an error."""

    def __init__(self, length: int) -> None:
        if length < 0:
            raise ArgumentError(f"`length` is {length}; it cannot be negative", inside=("length",))
        self.length = length

    def over(self, source: Stream) -> Stream:
        return _Lengthed(source, self.length)


class _Lengthed(DerivedStream):
    def __init__(self, source: Stream, said: int) -> None:
        super().__init__(source)
        self.said = said

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        given, below = at or (0, None)
        return _LengthCursor(self.source.open(way, below), way, self.said, given)

    def length(self, way: Pass) -> int | None:
        return self.said if way.shards == 1 else None


class _LengthCursor(OverOne):
    def __init__(self, source: Cursor, way: Pass, said: int, given: int) -> None:
        super().__init__(source)
        self.way, self.said, self.given = way, said, given

    def __next__(self) -> Any:
        for item in self.source:
            self.given += 1
            if self.given > self.said:
                raise InputError(
                    f"Length({self.said}) is too little: there are more items.",
                    fix="Count them, or leave it out.",
                )
            return item
        if self.way.shards == 1 and self.given < self.said:
            raise InputError(
                f"Length({self.said}): there are only {self.given} items.",
                fix=f"Say Length({self.given}).",
            )
        raise StopIteration

    def position(self) -> Position:
        return [self.given, self.source.position()]


class SplitByWorker(StreamStage):
    """Stage that gives each of `n` workers over all ranks every `n`-th item."""

    def over(self, source: Stream) -> Stream:
        return _Split(source)


class _Split(DerivedStream):
    def __init__(self, source: Stream) -> None:
        if source.is_sharded:
            raise ArgumentError(
                "SplitByWorker splits what is split already",
                inside=(),
                fix="leave one of the two out",
            )
        super().__init__(source)
        self.is_sharded = True

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        below, seen = at or (None, 0)
        return _SplitCursor(self.source.open(way.whole(), below), way, seen)

    def length(self, way: Pass) -> int | None:
        length = self.source.length(way.whole())
        return None if length is None else -(-(length - way.shard) // way.shards)


class _SplitCursor(OverOne):
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


class Prefetch(StreamStage):
    """Stage that reads `count` items ahead in a thread, for slow disks and networks."""

    def __init__(self, count: int = 8) -> None:
        self.count = at_least_one(count, "count")

    def over(self, source: Stream) -> Stream:
        drawing = [*source.draws(), *source.replayed_stages()]
        if drawing:
            raise ArgumentError(
                f"Prefetch works in a thread, but {drawing[0]} before it may draw random numbers, "
                "which threads share",
                inside=(),
                fix="put Prefetch before it, or load with workers",
            )
        return _Prefetched(source, self.count)


class _Prefetched(DerivedStream):
    def __init__(self, source: Stream, count: int) -> None:
        super().__init__(source)
        self.count = count

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _PrefetchCursor(self.source.open(way, at), self.count)


class _PrefetchCursor(Cursor):
    def __init__(self, source: Cursor, count: int) -> None:
        self.source = source
        self.at = source.position()
        self.ready: queue.Queue[tuple[str, Any, Position]] = queue.Queue(count)
        self.stopped = threading.Event()
        self.ended = False
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
