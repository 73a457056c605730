"""Requests that wait for one model, and run together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.web.inference.protocol import Arrays, ModelInputError
from assay.web.inference.served_model import ServedModel


@dataclass(slots=True, eq=False, kw_only=True)
class Waiting:
    """Request in the queue; those of one `form` can be put into one batch."""

    inputs: Arrays
    samples: int
    form: tuple[tuple[int, ...], ...]
    since_s: float
    answer: asyncio.Future[dict[str, NDArray[Any]]]


class Batcher:
    """Queue of one model: while a batch runs, the next one gathers.

    A batch has at most `max_samples`, and no more than the export has shown; one request may have
    more. Where there is nothing to wait for, a request waits up to `max_wait_s` for others. It
    belongs to one event loop.
    """

    def __init__(self, model: ServedModel, *, max_samples: int, max_wait_s: float) -> None:
        self.model = model
        self._max_samples = min(max_samples, model.certificate.batch)
        self._max_wait_s = max_wait_s if self._max_samples > 1 else 0.0
        self._waiting: deque[Waiting] = deque()
        self._is_closing = False
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="assay-model")
        self._loop = asyncio.get_running_loop()
        self._worker = self._loop.create_task(self._work())

    async def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Return the outputs for one request; ModelInputError. Cancelled, it leaves the queue."""
        shapes = tuple(array.shape for array in inputs.values())
        each = Waiting(
            inputs=inputs,
            samples=shapes[0][0] if shapes[0] else 1,
            form=tuple(shape[1:] for shape in shapes),
            since_s=self._loop.time(),
            answer=self._loop.create_future(),
        )
        self._waiting.append(each)
        self._changed.set()
        return await each.answer

    async def close(self) -> None:
        """Answer what waits still, then end."""
        self._is_closing = True
        self._changed.set()
        await self._worker
        self._thread.shutdown()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                if self._is_closing:
                    return
                self._changed.clear()
                await self._changed.wait()
            await self._gather()
            if batch := self._take():
                await self._answer(batch)

    async def _gather(self) -> None:
        """Wait until a batch is full, or its first request has waited long enough."""
        await asyncio.sleep(0)  # what has arrived already is read first
        end_s = self._waiting[0].since_s + self._max_wait_s
        while not self._is_closing and (left_s := end_s - self._loop.time()) > 0:
            if sum(each.samples for each in self._waiting) >= self._max_samples:
                return
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)

    def _take(self) -> list[Waiting]:
        """Take the oldest request from the queue, with those that fit to it."""
        taken: list[Waiting] = []
        kept: deque[Waiting] = deque()
        samples = 0
        for each in self._waiting:
            if each.answer.done():  # nobody waits for it any more
                continue
            if not taken or (
                each.form == taken[0].form and samples + each.samples <= self._max_samples
            ):
                taken.append(each)
                samples += each.samples
            else:
                kept.append(each)
        self._waiting = kept
        return taken

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        try:
            found = await self._loop.run_in_executor(self._thread, self._run, batch)
        except Exception as error:  # of any kind: it belongs to those who wait
            if len(batch) > 1 and isinstance(error, ModelInputError):
                for each in batch:  # the fault of one is not that of the others
                    await self._answer([each])
                return
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        for each, outputs in zip(batch, found, strict=True):
            if not each.answer.done():
                each.answer.set_result(outputs)

    def _run(self, batch: Sequence[Waiting]) -> list[dict[str, NDArray[Any]]]:
        """Run a batch, in the thread of the model."""
        if len(batch) == 1:
            return [self.model.run(batch[0].inputs)]
        joined = {
            name: np.concatenate([each.inputs[name] for each in batch]) for name in batch[0].inputs
        }
        outputs = self.model.run(joined)
        ends = np.cumsum([each.samples for each in batch])[:-1]
        parts = {name: np.split(array, ends) for name, array in outputs.items()}
        return [{name: part[i] for name, part in parts.items()} for i in range(len(batch))]
