"""Base class and helpers of all stages of streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Any

from assay.core.errors import ArgumentError
from assay.engine.data.streams.stream import Cursor, Position, Stream


class StreamStage(ABC):
    """Stage that a chain puts over a stream."""

    @abstractmethod
    def over(self, source: Stream) -> Stream:
        """Return the stream that this stage makes of the items of `source`."""


class OverOne(Cursor):
    """Cursor over one other cursor, with the same position."""

    def __init__(self, source: Cursor) -> None:
        self.source = source

    def position(self) -> Position:
        return self.source.position()

    def close(self) -> None:
        self.source.close()


def up_to(items: Iterable[Any], count: int) -> list[Any]:
    return list(islice(items, count))


def at_least_one(number: int, name: str) -> int:
    if number < 1:
        raise ArgumentError(f"`{name}` is {number}; it must be at least 1", inside=(name,))
    return number


def name_of(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
