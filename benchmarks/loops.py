"""Base of the benchmarks of training loops: network, loop written twice, timing and checks.

A script that uses this sets `OMP_NUM_THREADS` before: torch is imported here.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch
from figures import Figure, middle
from torch import Tensor, nn
from torch.optim import SGD

from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.record.recorder import RunRecorder
from assay.store.layout import open_project

WARMUP = 0.1

Batches = Sequence[tuple[Tensor, Tensor]]
Loop = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Side:
    """One way to train. `ready` makes the next round's loop; making it is not timed."""

    model: nn.Module
    ready: Callable[[], Loop]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same training two ways, and the seconds of each round."""

    hand: Side
    engine: Side
    hand_s: list[float] = field(default_factory=list)
    engine_s: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        return median(e / h for e, h in zip(self.engine_s, self.hand_s, strict=True))

    def over_s(self) -> float:
        return median(e - h for e, h in zip(self.engine_s, self.hand_s, strict=True))


# ------------------------------------------------------------------------------------------------------------ the parts


class Terminal(io.StringIO):
    """A terminal that nobody looks at."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def network(device: str = "cpu") -> tuple[nn.Module, SGD]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    fused = None if device == "cpu" else True  # without, each step of the engine would wait
    return model, SGD(model.parameters(), lr=0.01, fused=fused)


def batches_of(steps: int) -> Batches:
    torch.manual_seed(1)
    return [(torch.randn(32, 32), torch.randint(10, (32,))) for _ in range(steps)]


def pinned(batches: Batches) -> Batches:
    """Return the batches in page-locked memory, from which a GPU copies while the host goes on."""
    return [(inputs.pin_memory(), target.pin_memory()) for inputs, target in batches]


def moved(batches: Batches, device: str) -> Iterable[tuple[Tensor, Tensor]]:
    """Return the batches on a device, each copied when it is its turn; on a CPU as they are."""
    if device == "cpu":
        return batches
    return (
        (inputs.to(device, non_blocking=True), target.to(device, non_blocking=True))
        for inputs, target in batches
    )


def warmup_cosine(steps: int) -> Callable[[int], float]:
    """Factor of the learning rate, as of `WarmupCosine(warmup_ratio=WARMUP, start=0.001)`."""
    warmup = math.ceil(WARMUP * steps)

    def factor(step: int) -> float:
        if step < warmup:
            return 0.001 + 0.999 * step / warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    return factor


# ------------------------------------------------------------------------------------------------------------ measuring


def settle() -> None:
    """One thread on one core: a loop that moves between cores is another loop."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def time_in_turn(
    pairs: Collection[Pair], rounds: int, *, clock: Callable[[], float] = thread_time
) -> None:
    """Measure the CPU time of both sides of each pair, round after round, each first in turn.

    One more round warms up. `clock` gives seconds; on a device it waits until that is done.
    """
    for i in range(-1, rounds):
        for pair in pairs:
            both = (pair.hand, pair.hand_s), (pair.engine, pair.engine_s)
            for side, seconds in both if i % 2 else both[::-1]:
                loop = side.ready()
                begun = clock()
                loop()
                took = clock() - begun
                if i >= 0:
                    seconds.append(took)


def waits_in(side: Side) -> int:
    """Return how often a round of one side makes the host wait for a CUDA device."""
    loop = side.ready()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            loop()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(each.message) for each in told)


def over_processes(
    count: int, measured: Callable[..., Sequence[Figure]], *arguments: Any
) -> list[Figure]:
    """Median figures of `count` fresh processes in turn, as they depend on the memory's layout."""
    fresh = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with fresh:
        return middle([fresh.submit(measured, *arguments).result() for _ in range(count)])


def check_equal(name: str, pair: Pair) -> None:
    both = zip(pair.hand.model.parameters(), pair.engine.model.parameters(), strict=True)
    if not all(torch.equal(mine, theirs) for mine, theirs in both):
        raise SystemExit(
            f"error: the two sides of {name!r} did not train to the same weights: nothing was compared"
        )


@contextmanager
def recorded_in(folder: Path) -> Iterator[RunRecorder]:
    """An open run whose every file, in the user's folders too, is under `folder`."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        os.environ[name] = str(folder)
    recorder = start_run(open_project(folder, create=True), AttemptSpec(keep_code=False))
    try:
        yield recorder
    finally:
        recorder.finish()
