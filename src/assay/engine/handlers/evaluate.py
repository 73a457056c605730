"""Evaluation: every sample of a split once, in order, without disturbing the training around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Any
from zlib import crc32

import torch

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.core.facts import Evaluated
from assay.engine.engine import Engine
from assay.engine.metrics import Mean, size_of, to_device
from assay.engine.process import Process
from assay.engine.seed import EVALUATE, key, seed_all, undisturbed
from assay.engine.when import every as each


class Evaluate:
    """Evaluates splits at a period and, if not just done, at the end; results go to `state.metrics` and the record."""

    def __init__(self, splits: Mapping[str, Iterable[Any]], *, every: str = "1 epoch", seed: int = 0) -> None:
        self.splits = dict(splits)
        self.every = every
        self.seed = seed
        self.done_at: int | None = None

    def handlers(self) -> list[Handler]:
        periodic = each(self.every, self.run, name="Evaluate")
        if periodic is None or not self.splits:
            return []
        return [periodic, Handler(event=Event.RUN_END, fn=self.run, name="Evaluate")]

    def run(self, engine: Engine) -> None:
        """Evaluate every split, once for each step."""
        state = engine.state
        if self.done_at == state.step:
            return
        self.done_at = state.step
        begun = perf_counter()
        points = engine.bus.points
        for split, batches in self.splits.items():
            points[Event.EVAL_BEGIN].fire(state.step)
            split_begun = perf_counter()
            results, samples = evaluate(
                engine.process,
                batches,
                split=split,
                seed=self.seed,
                step=state.step,
                device=engine.device,
                before=lambda: points[Event.EVAL_STEP_BEGIN].fire(state.step),
                after=lambda: points[Event.EVAL_STEP_END].fire(state.step),
            )
            state.metrics.update(results)
            engine.recorder.log(results, state.step)
            seconds = perf_counter() - split_begun
            engine.recorder.tell(
                Evaluated(split=split, step=state.step, metrics=results, samples=samples, seconds=seconds)
            )
            points[Event.EVAL_END].fire(state.step)
        engine.process.train()
        engine.add_seconds("evaluation", perf_counter() - begun)


def evaluate(
    process: Process,
    batches: Iterable[Any],
    *,
    split: str,
    seed: int = 0,
    step: int = 0,
    device: torch.device | str = "cpu",
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> tuple[dict[str, float], int]:
    """Metrics of one split by name (`valid/loss`), and how many samples there were. The process is left in eval mode.

    The global random generators come back as they were; inside, each batch has its own key.
    """
    device = torch.device(device)
    metrics = getattr(process, "metrics", {})
    for metric in metrics.values():
        metric.reset()
    loss, samples = Mean(), 0
    process.eval()
    with undisturbed():
        for number, batch in enumerate(batches):
            if before is not None:
                before()
            if device.type != "cpu":
                batch = to_device(batch, device)
            seed_all(key(seed, EVALUATE, crc32(split.encode()), number))
            output = process.validation_step(batch)
            count = size_of(batch)
            samples += count
            if isinstance(output, Mapping) and output.get("loss") is not None:
                _add_loss(loss, output["loss"], count)
            for metric in metrics.values():
                metric.update(output)
            if after is not None:
                after()
    if not samples:
        raise InputError(f"The split {split} is empty: there is nothing to evaluate.", fix=f"Look at [data.{split}].")
    results = {f"{split}/loss": loss.value()} if loss.weight else {}
    for name, metric in metrics.items():
        value = metric.value()
        if isinstance(value, Mapping):
            results.update({f"{split}/{name}/{part}": float(number) for part, number in value.items()})
        else:
            results[f"{split}/{name}"] = float(value)
    return results, samples


def _add_loss(mean: Mean, loss: Any, count: int) -> None:
    if isinstance(loss, tuple):
        mean.total += float(loss[0])
        mean.weight += float(loss[1])
    else:
        mean.add(float(loss), count)
