"""Stages that work on one item after the other: map, filter, count, share out, read ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from assay.core.errors import ArgumentError, InputError
from assay.engine.data.streams.stream import (
    CountingCursor,
    Cursor,
    OverOne,
    Pass,
    Position,
    Stream,
    StreamStage,
    at_least_one,
    function_name,
)


class Map(StreamStage):
    """Stage that yields `function(item)`, each under its own key. `random` says that it draws."""

    def __init__(self, function: Callable[[Any], Any], *, random: bool = False) -> None:
        self.function, self.random = function, random

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        given, below = at or (0, None)
        return _MapCursor(source.open(way, below), self, way, lane, given)

    def draws(self) -> list[str]:
        return [function_name(self.function)] if self.random else []

    def makers(self) -> list[str]:
        return [function_name(self.function)]


class _MapCursor(CountingCursor):
    def __init__(self, source: Cursor, stage: Map, way: Pass, lane: int, given: int) -> None:
        super().__init__(source, given)
        self.stage = stage
        self.way = way
        self.lane = lane

    def __next__(self) -> Any:
        item = next(self.source)
        self.way.draw_under(self.lane, self.given)
        try:
            return self.stage.function(item)
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(
                f"while {function_name(self.stage.function)} was given item {self.given} of epoch "
                f"{self.way.epoch}"
            )
            raise
        finally:
            self.given += 1


class Filter(StreamStage):
    """Stage that keeps the items for which `function(item)` is true."""

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.function = function

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        seen, below = at or (0, None)
        return _FilterCursor(source.open(way, below), self.function, way, lane, seen)

    def length(self, source: Stream, way: Pass) -> None:
        return None


class _FilterCursor(OverOne):
    def __init__(
        self, source: Cursor, function: Callable[[Any], bool], way: Pass, lane: int, seen: int
    ) -> None:
        super().__init__(source)
        self.function, self.way, self.lane, self.seen = function, way, lane, seen

    def __next__(self) -> Any:
        for item in self.source:
            self.way.draw_under(self.lane, self.seen)
            self.seen += 1
            if self.function(item):
                return item
        raise StopIteration

    def position(self) -> Position:
        return [self.seen, self.source.position()]


class FlatMap(StreamStage):
    """Stage that yields all items of `function(item)`, such as the lines of each file."""

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        self.function = function

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        below, inside, taken = at or (None, 0, 0)
        return _FlatCursor(source.open(way, below), self.function, way, lane, inside, taken)

    def length(self, source: Stream, way: Pass) -> None:
        return None

    def makers(self) -> list[str]:
        return [function_name(self.function)]


class _FlatCursor(OverOne):
    """Cursor whose position is that of the item being taken apart, and the parts given of it.

    `taken` counts the items before that one.
    """

    def __init__(
        self,
        source: Cursor,
        function: Callable[[Any], Iterable[Any]],
        way: Pass,
        lane: int,
        inside: int,
        taken: int,
    ) -> None:
        super().__init__(source)
        self.function, self.way, self.lane = function, way, lane
        self.inside, self.taken = 0, taken - 1
        self.outer: Position = source.position()
        self.parts: Iterator[Any] = iter(())
        if inside:
            self._take_apart()
            for _ in range(inside):
                self._next_part()

    def _take_apart(self) -> None:
        self.outer = self.source.position()
        self.inside = 0
        self.taken += 1
        item = next(self.source)
        self._draw_under_key()
        self.parts = iter(self.function(item))

    def _draw_under_key(self) -> None:
        self.way.draw_under(self.lane, self.taken * _MOST_PARTS + self.inside)

    def _next_part(self) -> Any:
        """Return the next part of the item; `_NONE` after the last."""
        self.inside += 1
        self._draw_under_key()
        return next(self.parts, _NONE)

    def __next__(self) -> Any:
        while (part := self._next_part()) is _NONE:
            self._take_apart()
        return part

    def position(self) -> Position:
        return [self.outer, self.inside, max(self.taken, 0)]


_NONE = object()
_MOST_PARTS = 1 << 20
"""Parts of one item that have keys of their own."""


class Take(StreamStage):
    """Stage that ends an epoch after `count` items."""

    def __init__(self, count: int) -> None:
        self.count = at_least_one(count, "count")

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        given, below = at or (0, None)
        cursor = source.open(way, below)
        return CountingCursor(cursor, given, islice(cursor, max(0, self.count - given)))

    def length(self, source: Stream, way: Pass) -> int | None:
        length = source.length(way)
        return None if length is None else min(length, self.count)


class Length(StreamStage):
    """Stage that declares the number of items; an epoch with another number ends in an error."""

    def __init__(self, length: int) -> None:
        if length < 0:
            raise ArgumentError(f"`length` is {length}; it cannot be negative", inside=("length",))
        self.said = length

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        given, below = at or (0, None)
        return _LengthCursor(source.open(way, below), way, self.said, given)

    def length(self, source: Stream, way: Pass) -> int | None:
        return self.said if way.shards == 1 else None


class _LengthCursor(CountingCursor):
    def __init__(self, source: Cursor, way: Pass, said: int, given: int) -> None:
        super().__init__(source, given)
        self.way, self.said = way, said

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


class SplitByWorker(StreamStage):
    """Stage that gives each of `n` workers over all ranks every `n`-th item."""

    def over(self, source: Stream) -> Stream:
        if source.is_sharded:
            raise ArgumentError(
                "SplitByWorker splits what is split already",
                inside=(),
                fix="leave one of the two out",
            )
        stream = super().over(source)
        stream.is_sharded = True
        return stream

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        below, seen = at or (None, 0)
        return _SplitCursor(source.open(way.whole(), below), way, seen)

    def length(self, source: Stream, way: Pass) -> int | None:
        length = source.length(way.whole())
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
        return super().over(source)

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        return _PrefetchCursor(source.open(replace(way, is_keyed=False), at), self.count)


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
