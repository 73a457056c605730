"""GPT of the examples, trained by the engine and by hand: the engine's cost for a real model.

By hand: AdamW in its fused form, a warm-up and cosine by `LambdaLR`, `clip_grad_norm_`,
`loss.item()` kept in a list. The engine: the same, with loss, norm and learning rate on disk at
every step, and a bar. Both train on the same list of batches, in turn, on one thread; the figures
are medians over rounds and processes, in CPU time. Both must end with equal bits.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TERM"] = "xterm-256color"

import logging
import runpy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from figures import Figure, machine, options, show
from loops import (
    WARMUP,
    Batches,
    Loop,
    Pair,
    Side,
    Terminal,
    check_equal,
    over_processes,
    recorded_in,
    settle,
    time_in_turn,
    warmup_cosine,
)
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from assay.core.ports import Recorder
from assay.engine import Display, Engine, OptimizerStep, Supervised, WarmupCosine

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "03_gpt"
NORM, RATE = 1.0, 1e-2


def network() -> tuple[nn.Module, AdamW]:
    torch.manual_seed(0)
    model = runpy.run_path(str(EXAMPLE / "model.py"))["GPT"](128, 48, width=64, layers=2, heads=4)
    return model, AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)


def batches_of(steps: int) -> Batches:
    data = runpy.run_path(str(EXAMPLE / "data.py"))["Manual"]("train", 48)
    items = [data[i] for i in range(32 * steps)]
    columns = [torch.stack(column) for column in zip(*items, strict=True)]
    return list(zip(*(column.split(32) for column in columns), strict=True))


def by_hand(batches: Batches) -> Side:
    model, optimizer = network()
    criterion = nn.CrossEntropyLoss()
    factor = warmup_cosine(len(batches))

    def ready() -> Loop:
        scheduler = LambdaLR(optimizer, factor)
        losses: list[float] = []

        def loop() -> None:
            for inputs, target in batches:
                loss = criterion(model(inputs), target)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(loss.item())

        return loop

    return Side(model, ready)


def by_engine(batches: Batches, recorder: Recorder) -> Side:
    model, optimizer = network()
    criterion = nn.CrossEntropyLoss()

    def ready() -> Loop:
        schedule = WarmupCosine(warmup_ratio=WARMUP, start=0.001)
        process = Supervised(
            model, criterion, backward=OptimizerStep(optimizer, schedule=schedule, clip_norm=NORM)
        )
        display = Display(logger=logging.getLogger("benchmark"), stream=Terminal())
        return Engine(process, batches, recorder=recorder, handlers=display.handlers()).run

    return Side(model, ready)


def measured(steps: int, rounds: int, recorder: Recorder) -> Iterator[Figure]:
    batches = batches_of(steps)
    pair = Pair(by_hand(batches), by_engine(batches, recorder))
    time_in_turn([pair], rounds)
    check_equal("gpt", pair)
    yield Figure(name="gpt.hand_ms", value=median(pair.hand_s) / steps * 1e3, unit="ms")
    yield Figure(name="gpt.over_us", value=pair.over_s() / steps * 1e6, unit="us")
    yield Figure(name="gpt.ratio", value=pair.ratio(), at_most=1.01)


def in_a_process_of_its_own(steps: int, rounds: int) -> list[Figure]:
    settle()
    with tempfile.TemporaryDirectory() as folder, recorded_in(Path(folder)) as recorder:
        return [*measured(steps, rounds, recorder)]


def main() -> None:
    asked = options("What the engine costs on a real model.")
    where = machine()
    processes, steps, rounds = (1, 4, 1) if asked.quick else (5, 100, 9)
    figures = over_processes(processes, in_a_process_of_its_own, steps, rounds)
    show("gpt: the engine against the same loop by hand", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    main()
