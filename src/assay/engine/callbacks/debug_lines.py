"""Lines for who looks closely: those of `--debug`, and what torch.compile made of a model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from assay.core.events import Event, Handler
from assay.engine.data.batches import leaves
from assay.engine.loop.engine import Engine
from assay.engine.numerics import private_torch
from assay.engine.numerics.seed import streams


def debug_handlers(
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger], splits: Iterable[str]
) -> list[Handler]:
    """Return handlers that log the model, the generators with their seeds, and each step."""
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
            _describe_batch(state.batch),
            1000 * spent,
        )

    return [
        Handler(event=Event.RUN_BEGIN, fn=begin, priority=-90, name="Debug"),
        Handler(event=Event.STEP_END, fn=step, priority=-90, name="Debug"),
    ]


def _describe_batch(batch: Any) -> str:
    """Return types and shapes of the tensors of a batch: `float32 (8, 4) and int64 (8,)`."""
    shown = [
        f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
        for _, leaf in leaves(batch)
        if hasattr(leaf, "shape")
    ]
    return " and ".join(shown) or f"a {type(batch).__name__}"


class CompileReport:
    """Callback that reports, at the run's end, compiled graphs and reasons of graph breaks."""

    def __init__(self, say: Callable[[str], object] = print) -> None:
        self.say = say
        self._before: tuple[int, dict[str, int]] = (0, {})

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.begin),
            Handler(event=Event.RUN_END, fn=self.tell, priority=95),
        ]

    def begin(self) -> None:
        self._before = private_torch.compiler_counts()

    def tell(self, engine: Engine) -> None:
        graphs, breaks = private_torch.compiler_counts()
        known = self._before[1]
        reasons = {
            why: count - known.get(why, 0)
            for why, count in breaks.items()
            if count > known.get(why, 0)
        }
        values = {
            "compile/graphs": graphs - self._before[0],
            "compile/graph_breaks": sum(reasons.values()),
        }
        self.say(
            f"compiled graphs: {values['compile/graphs']}, graph breaks:"
            f" {values['compile/graph_breaks']}"
        )
        for why, count in reasons.items():
            self.say(f"graph break ({count}): {why.splitlines()[0]}")
        engine.recorder.log(values, engine.state.step)
