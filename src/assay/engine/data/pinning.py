"""Batches put into page-locked memory by a thread, while the one before is trained on."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import Full, Queue
from typing import Any

from assay.engine.data.batches import pinned

_AHEAD = 1
_LOOK_S = 0.1


def pinned_ahead(batches: Iterator[Any]) -> Generator[Any]:
    """Yield the batches, pinned one ahead in a thread, in which nothing may be drawn."""
    ready: Queue[tuple[Any, BaseException | None]] = Queue(_AHEAD)
    stopped = threading.Event()

    def put(batch: Any, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put((batch, error), timeout=_LOOK_S)
            except Full:
                continue

    def pin() -> None:
        try:
            for batch in batches:
                put(pinned(batch), None)
                if stopped.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # raised where the batch is wanted
            put(None, error)

    thread = threading.Thread(target=pin, name="assay-pin", daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield batch
    finally:
        stopped.set()
        thread.join()
