"""Stage that splits a stream over workers and ranks."""

from __future__ import annotations

from typing import Any

from assay.core.errors import ArgumentError
from assay.engine.data.streams.stage import OverOne, StreamStage
from assay.engine.data.streams.stream import Cursor, DerivedStream, Pass, Position, Stream


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
