"""Stage that reads ahead in a thread."""

from __future__ import annotations

import queue
import threading
from typing import Any

from assay.core.errors import ArgumentError
from assay.engine.data.streams.stage import StreamStage, at_least_one
from assay.engine.data.streams.stream import Cursor, DerivedStream, Pass, Position, Stream


class Prefetch(StreamStage):
    """Stage that reads `count` items ahead in a thread, for slow disks and networks."""

    def __init__(self, count: int = 8) -> None:
        self.count = at_least_one(count, "count")

    def over(self, source: Stream) -> Stream:
        drawing = [*source.draws(), *source.replayed()]
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
