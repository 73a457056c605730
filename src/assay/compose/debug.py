"""Implementation of `--debug`: kernels one at a time, names of ops, and a line for every step."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from assay.core.events import Event, Handler
from assay.record.logfile import debugging as debugging_log

if TYPE_CHECKING:
    from assay.engine import Engine

VARIABLE = "CUDA_LAUNCH_BLOCKING"
"""Read by CUDA when it starts, in this process and in those that load data."""


@contextlib.contextmanager
def debugging(*, on: bool) -> Iterator[None]:
    """Switch on everything that `--debug` means, and restore it at exit.

    Enter before a device is used.
    """
    if not on:
        yield
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    from assay.engine.numerics.nan_debug import debugged

    try:
        with debugging_log(), debugged():
            yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def debug_handlers(
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger], splits: Iterable[str]
) -> list[Handler]:
    """Return handlers that log the model, the generators with their seeds, and each step."""
    from assay.engine.numerics.seed import streams

    since = [0.0]

    def begin(engine: Engine) -> None:
        model = engine.process.model
        count = sum(parameter.numel() for parameter in model.parameters())
        logger.debug(
            "%s with %s parameters on %s, seed %d",
            type(model).__name__,
            f"{count:,}",
            engine.device,
            engine.seed,
        )
        for purpose, seed in streams(engine.seed, splits).items():
            logger.debug("generator for %s: seed %d", purpose, seed)
        since[0] = time.perf_counter()

    def step(engine: Engine) -> None:
        state = engine.state
        now = time.perf_counter()
        spent, since[0] = now - since[0], now
        logger.debug(
            "step %d: loss %.6g, %s, %.1f ms",
            state.step,
            state.loss,
            _described(state.batch),
            1000 * spent,
        )

    return [
        Handler(event=Event.RUN_BEGIN, fn=begin, priority=-90, name="Debug"),
        Handler(event=Event.STEP_END, fn=step, priority=-90, name="Debug"),
    ]


def _described(batch: Any) -> str:
    """Return types and shapes of the tensors of a batch: `float32 (8, 4) and int64 (8,)`."""
    items = (
        batch.values()
        if isinstance(batch, dict)
        else batch
        if isinstance(batch, list | tuple)
        else [batch]
    )
    shown = [
        f"{str(item.dtype).removeprefix('torch.')} {tuple(item.shape)}"
        for item in items
        if hasattr(item, "shape")
    ]
    return " and ".join(shown) or f"a {type(batch).__name__}"
