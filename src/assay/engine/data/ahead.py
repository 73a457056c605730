"""Batches made ready ahead: page-locked by a thread, copied to a device during the step before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from queue import Full, Queue
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from assay.engine.data.batches import pin
from assay.engine.data.source import Window
from assay.engine.numerics.structures import map_values, tensors_in


def ahead(
    windows: Iterable[Window],
    device: torch.device,
    *,
    is_last: Callable[[], bool] = lambda: False,
    took: Callable[[float], object] = lambda seconds: None,
) -> Iterator[Window]:
    """Yield the windows with their tensors on `device`, each copied one window ahead.

    On a GPU a stream of its own copies from pinned memory, so that the host and the computation go
    on meanwhile. Once `is_last` says so no further window is drawn. `took` hears of the seconds
    that the host spent on it.
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    iterator = iter(windows)
    waiting: list[tuple[Window, torch.cuda.Event | None]] = []
    while True:
        window = None if waiting and is_last() else next(iterator, None)
        if window is not None:
            begun = perf_counter()
            waiting.append(_send(window, device, stream))
            took(perf_counter() - begun)
        if not waiting:
            return
        if window is None or waiting[1:]:
            yield _await_copy(*waiting.pop(0), device)


def _send(
    window: Window, device: torch.device, stream: torch.cuda.Stream | None
) -> tuple[Window, torch.cuda.Event | None]:
    """Begin the copy of a window; return it, with the event of its end."""

    def send(tensor: Tensor) -> Tensor:
        if stream is not None and tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    copying: AbstractContextManager[Any] = nullcontext()
    if stream is not None:
        copying = torch.cuda.stream(stream)
    with copying:
        moved = window._replace(batches=[map_values(batch, send) for batch in window.batches])
    # Of this window alone: to wait for the stream would be to wait for the next copy too.
    return moved, None if stream is None else stream.record_event()


def _await_copy(window: Window, copied: torch.cuda.Event | None, device: torch.device) -> Window:
    """Make the computation stream wait for the copy, and keep the memory until it is done."""
    if copied is not None:
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        for tensor in tensors_in(window.batches):
            tensor.record_stream(current)
    return window


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

    def work() -> None:
        try:
            for batch in batches:
                put(pin(batch), None)
                if stopped.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:  # raised where the batch is wanted
            put(None, error)

    thread = threading.Thread(target=work, name="assay-pin", daemon=True)
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
