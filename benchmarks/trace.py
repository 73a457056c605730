"""What a trace costs: the same training with and without it, in turn, in one process, in CPU time.

`tiny` is a layer of 64 numbers, where a step is next to nothing; `gpt` is the GPT of the examples.
`default` traces every hundredth step, `full` every step with all its operations. Both sides must
end with equal bits.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from figures import Figure, machine, options, show
from gpt import SMALL
from loops import Batches, Loop, Pair, Side, check_equal, over_processes, settle, time_in_turn
from torch import nn
from torch.optim import AdamW

from assay.engine import Engine, OptimizerStep, Supervised
from assay.engine.trace.tracer import Tracer
from assay.formats.trace_file import Level
from assay.record.trace_writer import TraceWriter


def tiny() -> tuple[nn.Module, AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, AdamW(model.parameters(), lr=1e-3, fused=True)


def tiny_batches(steps: int) -> Batches:
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(32, 64, generator=draw), torch.randint(10, (32,), generator=draw))
        for _ in range(steps)
    ]


def side(name: str, batches: Batches, level: Level | None, folder: Path) -> Side:
    model, optimizer = tiny() if name == "tiny" else SMALL.network()
    criterion = nn.CrossEntropyLoss()
    every = 100 if level == "default" else 1

    def ready() -> Loop:
        process = Supervised(model, criterion, backward=OptimizerStep(optimizer))
        engine = Engine(process, batches)
        if level is not None:
            writer = TraceWriter(folder / f"{level}.bin", on_problem=print)
            engine.bus.extend(Tracer(writer.write, every=every, level=level).handlers())
        return engine.run

    return Side(model, ready)


def measured(name: str, level: Level, steps: int, rounds: int, folder: Path) -> Iterator[Figure]:
    batches = tiny_batches(steps) if name == "tiny" else SMALL.batches(steps)
    pair = Pair(side(name, batches, None, folder), side(name, batches, level, folder))
    time_in_turn([pair], rounds)
    check_equal(f"{name}.{level}", pair)
    yield Figure(
        name=f"trace.{name}.{level}.ratio",
        value=pair.ratio(),
        at_most=1.05 if level == "default" else None,
    )
    if level == "default":
        yield Figure(
            name=f"trace.{name}.step_us", value=median(pair.hand_s) / steps * 1e6, unit="us"
        )


def in_a_process_of_its_own(scale: int, rounds: int) -> list[Figure]:
    settle()
    steps = {
        ("tiny", "default"): 1000,
        ("tiny", "full"): 100,
        ("gpt", "default"): 100,
        ("gpt", "full"): 20,
    }
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tiny", "gpt"):
            levels: tuple[Level, ...] = ("default", "full")
            for level in levels:
                count = max(steps[name, level] // scale, 2)
                figures += measured(name, level, count, rounds, Path(folder))
    return figures


def main() -> None:
    asked = options(__doc__ or "")
    where = machine()
    processes, scale, rounds = (1, 50, 1) if asked.quick else (3, 1, 7)
    figures = over_processes(processes, in_a_process_of_its_own, scale, rounds)
    show("trace: training with fingerprints and without", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    main()
