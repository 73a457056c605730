"""Several streams as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Any

from assay.core.errors import ArgumentError
from assay.engine.data.streams.stream import Cursor, Pass, Position, Stream, as_stream


class _Joined(Stream):
    """Base of streams made from several."""

    def __init__(self, streams: Sequence[Any]) -> None:
        if not streams:
            raise ArgumentError("there is no stream to join", inside=("streams",))
        self.streams = [as_stream(stream) for stream in streams]
        self.lane = max(stream.lane for stream in self.streams) + 1
        self.is_sharded = _all_or_none_sharded(self.streams)

    def replayed_stages(self) -> list[str]:
        return [name for stream in self.streams for name in stream.replayed_stages()]

    def draws(self) -> list[str]:
        return [name for stream in self.streams for name in stream.draws()]

    def makers(self) -> list[str]:
        return [name for stream in self.streams for name in stream.makers()]


class Concat(_Joined):
    """Source that joins streams one after the other."""

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _ConcatCursor(self.streams, way, *(at or (0, None)))

    def length(self, way: Pass) -> int | None:
        return _sum([stream.length(way) for stream in self.streams])


class _ConcatCursor(Cursor):
    def __init__(
        self, streams: Sequence[Stream], way: Pass, number: int, at: Position | None
    ) -> None:
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


class Mix(_Joined):
    """Source that draws from several streams by weight; an epoch ends with the first that ends.

    `repeat`: a stream that ends begins anew, until each has ended once.
    """

    def __init__(
        self, streams: Sequence[Any], weights: Sequence[float], *, repeat: bool = False
    ) -> None:
        super().__init__(streams)
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

    def open(self, way: Pass, at: Position | None = None) -> Cursor:
        return _MixCursor(self, way, at)


class _MixCursor(Cursor):
    def __init__(self, stream: Mix, way: Pass, at: Position | None) -> None:
        self.stream, self.way = stream, way
        self.given: int
        self.given, below = at or (0, [(0, None)] * len(stream.streams))
        self.rounds = [rounds for rounds, _ in below]
        self.cursors = [self._open(i, position) for i, (_, position) in enumerate(below)]

    def _open(self, i: int, at: Position | None = None) -> Cursor:
        return self.stream.streams[i].open(
            self.way.within(i + len(self.rounds) * self.rounds[i]), at
        )

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
        below = [
            [rounds, cursor.position()]
            for rounds, cursor in zip(self.rounds, self.cursors, strict=True)
        ]
        return [self.given, below]

    def close(self) -> None:
        for cursor in self.cursors:
            cursor.close()


def _sum(lengths: Sequence[int | None]) -> int | None:
    return None if None in lengths else sum(length for length in lengths if length is not None)


def _all_or_none_sharded(streams: Sequence[Stream]) -> bool:
    sharded = {stream.is_sharded for stream in streams}
    if len(sharded) > 1:
        raise ArgumentError(
            "some of the streams have a SplitByWorker and some have none",
            inside=("streams",),
            fix="put one SplitByWorker after what joins them",
        )
    return sharded.pop()
