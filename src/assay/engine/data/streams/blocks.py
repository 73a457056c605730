"""Stages that hold several items at a time: batches and shuffled blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any

from assay.core.errors import ArgumentError
from assay.engine.data.streams.stream import (
    Cursor,
    OverOne,
    Pass,
    Position,
    Stream,
    StreamStage,
    at_least_one,
    up_to,
)


class Batch(StreamStage):
    """Stage that yields lists of `batch_size` items; `drop_last` leaves out a shorter last one."""

    def __init__(self, batch_size: int, *, drop_last: bool = False) -> None:
        self.batch_size = at_least_one(batch_size, "batch_size")
        self.drop_last = drop_last

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        cursor = source.open(way, at)
        batches = iter(lambda: up_to(cursor, self.batch_size), [])
        least = self.batch_size if self.drop_last else 1
        return OverOne(cursor, (batch for batch in batches if len(batch) >= least))

    def length(self, source: Stream, way: Pass) -> int | None:
        length = source.length(way)
        if length is None:
            return None
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)


class _Blocks(StreamStage):
    """Stage over blocks of `buffer` items; a position is a block's begin and the items given."""

    buffer: int

    @abstractmethod
    def put_in_order(self, items: list[Any], random: Random) -> list[Any]:
        """Return the items of a block in the order to give them."""

    def open(self, source: Stream, way: Pass, at: Position | None, lane: int) -> Cursor:
        number, below, inside = at or (0, None, 0)
        return _BlockCursor(source.open(way, below), self, way, lane, number, inside)


class _BlockCursor(OverOne):
    def __init__(
        self, source: Cursor, stage: _Blocks, way: Pass, lane: int, number: int, inside: int
    ) -> None:
        super().__init__(source)
        self.stage, self.way, self.lane = stage, way, lane
        self.number = number
        self.inside = 0
        self.block = list[Any]()
        self.began = source.position()
        if inside:
            self._read()
            self.inside = inside

    def _read(self) -> None:
        self.began = self.source.position()
        self.inside = 0
        random = Random(self.way.key(self.lane, self.number))
        self.block = self.stage.put_in_order(up_to(self.source, self.stage.buffer), random)
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


class Shuffle(_Blocks):
    """Stage that shuffles within blocks of `buffer` items, by seed, epoch and shard.

    Blocks, not a sliding buffer: a block can be filled again from where it began, so that nothing
    has to be kept. The order of files, or a second `Shuffle` before a stage that takes them apart,
    mixes what lies further apart.
    """

    def __init__(self, buffer: int = 1000) -> None:
        self.buffer = at_least_one(buffer, "buffer")

    def put_in_order(self, items: list[Any], random: Random) -> list[Any]:
        random.shuffle(items)
        return items


class Bucket(_Blocks):
    """Stage that batches items of similar length, within blocks of `buffer` items.

    Items of one length stay in their order; with a `Shuffle` before, that is another one in each
    epoch.
    """

    def __init__(
        self, batch_size: int, *, buffer: int = 1000, length: Callable[[Any], int] = len
    ) -> None:
        self.batch_size = at_least_one(batch_size, "batch_size")
        self.buffer = at_least_one(buffer, "buffer")
        self.length_of = length
        if buffer < batch_size:
            raise ArgumentError(
                f"`buffer` is {buffer}, less than a batch of {batch_size}",
                inside=("buffer",),
                fix="a hundred batches is usual",
            )

    def put_in_order(self, items: list[Any], random: Random) -> list[Any]:
        items.sort(key=self.length_of)
        size = self.batch_size
        batches = [items[i : i + size] for i in range(0, len(items), size)]
        random.shuffle(batches)
        return batches

    def length(self, source: Stream, way: Pass) -> int | None:
        length = source.length(way)
        if length is None:
            return None
        blocks, rest = divmod(length, self.buffer)
        return blocks * -(-self.buffer // self.batch_size) + -(-rest // self.batch_size)
