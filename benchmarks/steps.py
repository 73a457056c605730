"""What a training step and a log call cost.

Every loop runs twice: written by hand in plain PyTorch, and by the engine. Both train the same
small network (32-64-10, batches of 32, SGD) on the same list of batches, in one process, in turn,
round after round; a round is one whole run of the loop. Counted is the median over the rounds: of
the ratio engine to hand of one round, and of the difference for each step. Where a process happens
to lie in memory moves both by a few per cent, so that several processes count in this way, one
after another, and what is told is their median (and the range). Time is the CPU time of the
training thread, in which nobody else on the machine has a share. At the end both sides must have
trained to equal bits, else the comparison is void.

    bare       Hand: forward, backward, step, zero. Engine: its defaults, which key the randomness
               of each step, read the loss, check that it is finite and split the time; nothing is
               recorded.
    traced     The same with the trace of a run, every hundredth step. The target of the bare loop
               counts it.
    idle       Hand: `clip_grad_norm_` with a limit that never bites, and `loss.item()` kept
               in a list.
               Engine: clipping to the same bits, loss, norm and learning rate recorded on disk at
               each step, bar on.
    working    The same with a limit that bites at every step.
    careful    Hand: also a warm-up and cosine by `LambdaLR`, and a line of text for each
               step, flushed.
               Engine: also `WarmupCosine`.

The bar draws to a terminal that swallows everything; its start and end lie inside the round. No
evaluation, no checkpoint. `steps.working.to_bare` compares the engine's working loop with the bare
one written by hand.

With `--device cuda`, `bare` and `working` on a GPU: the CPU time of the thread that drives it, and how
often in a step that waits for it.

`log.*` is one call of `RunRecorder.log`, over and over, by the clock on the wall: the mean (of the
median block of many calls) holds everything, growing the file included; percentiles are of calls
timed one by one, less what the clock takes; the median of several folders. `log.in_loop_us` is what
recording loss and learning rate adds to a step of the engine, where torch has used the caches in
between.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = (
    "1"  # before torch is imported: several threads only make so small a network slower
)
os.environ["TERM"] = "xterm-256color"  # else there is no bar

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TextIO

import torch
from figures import Figure, machine, middle, options, show
from loops import (
    WARMUP,
    Batches,
    Loop,
    Pair,
    Side,
    Terminal,
    batches_of,
    check_equal,
    moved,
    network,
    over_processes,
    pinned,
    recorded_in,
    settle,
    time_in_turn,
    waits_in,
    warmup_cosine,
)
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from assay.core.ports import Recorder
from assay.engine import Display, Engine, OptimizerStep, Supervised, WarmupCosine
from assay.engine.optim.schedules import Schedule
from assay.engine.trace.tracer import Tracer
from assay.formats.metrics_file import metrics_state
from assay.record.recorder import RunRecorder
from assay.record.trace_writer import TraceWriter

BLOCKS = 20
NEVER_BITES, ALWAYS_BITES = 1e6, 1e-3

# -------------------------------------------------------------------------------------------------------------- by hand


def bare_by_hand(batches: Batches, *, device: str = "cpu") -> Side:
    model, optimizer = network(device)
    criterion = nn.CrossEntropyLoss()

    def loop() -> None:
        for inputs, target in moved(batches, device):
            loss = criterion(model(inputs), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return Side(model, lambda: loop)


def working_by_hand(batches: Batches, *, max_norm: float, device: str = "cpu") -> Side:
    model, optimizer = network(device)
    criterion = nn.CrossEntropyLoss()

    def ready() -> Loop:
        losses: list[float] = []

        def loop() -> None:
            for inputs, target in moved(batches, device):
                loss = criterion(model(inputs), target)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())

        return loop

    return Side(model, ready)


def careful_by_hand(batches: Batches, log: TextIO, *, max_norm: float) -> Side:
    model, optimizer = network()
    criterion = nn.CrossEntropyLoss()
    factor = warmup_cosine(len(batches))

    def ready() -> Loop:
        scheduler = LambdaLR(optimizer, factor)
        losses: list[float] = []

        def loop() -> None:
            for step, (inputs, target) in enumerate(batches):
                loss = criterion(model(inputs), target)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                rate = optimizer.param_groups[0]["lr"]
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                log.write(f"{step + 1},{losses[-1]},{rate},{norm.item()}\n")
                log.flush()

        return loop

    return Side(model, ready)


# -------------------------------------------------------------------------------------------------------- by the engine


def by_engine(
    batches: Batches,
    *,
    recorder: Recorder | None = None,
    max_norm: float | None = None,
    schedule: Schedule | None = None,
    bar: bool = False,
    trace: Path | None = None,
    device: str = "cpu",
) -> Side:
    model, optimizer = network(device)
    criterion = nn.CrossEntropyLoss()

    def ready() -> Loop:
        process = Supervised(
            model,
            criterion,
            backward=OptimizerStep(optimizer, schedule=schedule, clip_norm=max_norm),
        )
        display = Display(logger=logging.getLogger("benchmark"), stream=Terminal())
        handlers = display.handlers() if bar else []
        if trace is not None:
            writer = TraceWriter(trace, on_problem=print)
            handlers = [*handlers, *Tracer(writer.write).handlers()]
        return Engine(process, batches, recorder=recorder, handlers=handlers, device=device).run

    return Side(model, ready)


# ------------------------------------------------------------------------------------------------------------ measuring


def loops(
    steps: int, rounds: int, recorder: Recorder, log: TextIO, trace: Path
) -> Iterator[Figure]:
    batches = batches_of(steps)
    working = {"recorder": recorder, "bar": True}
    pairs = {
        "bare": Pair(bare_by_hand(batches), by_engine(batches)),
        "traced": Pair(bare_by_hand(batches), by_engine(batches, trace=trace)),
        "idle": Pair(
            working_by_hand(batches, max_norm=NEVER_BITES),
            by_engine(batches, max_norm=NEVER_BITES, **working),
        ),
        "working": Pair(
            working_by_hand(batches, max_norm=ALWAYS_BITES),
            by_engine(batches, max_norm=ALWAYS_BITES, **working),
        ),
        "careful": Pair(
            careful_by_hand(batches, log, max_norm=ALWAYS_BITES),
            by_engine(
                batches,
                max_norm=ALWAYS_BITES,
                schedule=WarmupCosine(warmup_ratio=WARMUP, start=0.001),
                **working,
            ),
        ),
        "recorded": Pair(by_engine(batches), by_engine(batches, recorder=recorder)),
    }
    time_in_turn(pairs.values(), rounds)
    for name, pair in pairs.items():
        check_equal(name, pair)
    recorded = pairs.pop("recorded")
    for name, pair in pairs.items():
        yield Figure(
            name=f"steps.{name}.hand_us", value=median(pair.hand_s) / steps * 1e6, unit="us"
        )
        at_most = 8.0 if name == "bare" else None
        yield Figure(
            name=f"steps.{name}.over_us",
            value=pair.over_s() / steps * 1e6,
            unit="us",
            at_most=at_most,
        )
        at_most = {"bare": 1.05, "traced": 1.05}.get(name, 1.0)
        yield Figure(name=f"steps.{name}.ratio", value=pair.ratio(), at_most=at_most)
    to_bare = median(
        w / b for w, b in zip(pairs["working"].engine_s, pairs["bare"].hand_s, strict=True)
    )
    yield Figure(name="steps.working.to_bare", value=to_bare)
    yield Figure(name="log.in_loop_us", value=recorded.over_s() / steps * 1e6, unit="us")


def log_calls(recorder: RunRecorder, metrics: int, calls: int) -> Iterator[Figure]:
    values = {f"train/metric_{i}": 1.0 / (i + 1) for i in range(metrics)}
    log = recorder.log
    for step in range(1000):
        log(values, step)
    used = size_of(recorder)
    blocks = []
    for _ in range(BLOCKS):
        begun = perf_counter_ns()
        for step in range(calls // BLOCKS):
            log(values, step)
        blocks.append((perf_counter_ns() - begun) / (calls // BLOCKS) / 1e3)
    used = size_of(recorder) - used

    took, empty = [], []
    for step in range(calls):
        begun = perf_counter_ns()
        log(values, step)
        took.append(perf_counter_ns() - begun)
    for _ in range(calls):
        begun = perf_counter_ns()
        empty.append(perf_counter_ns() - begun)
    took.sort()
    clock = median(empty)
    few = metrics == 1
    yield Figure(
        name=f"log.{metrics}.mean_us", value=median(blocks), unit="us", at_most=2.5 if few else 4.0
    )
    for name, share, at_most in (("p50", 0.5, None), ("p99", 0.99, None), ("p999", 0.999, 10.0)):
        value = (took[min(calls - 1, int(share * calls))] - clock) / 1e3
        yield Figure(name=f"log.{metrics}.{name}_us", value=value, unit="us", at_most=at_most)
    yield Figure(name=f"log.{metrics}.longest_us", value=(took[-1] - clock) / 1e3, unit="us")
    yield Figure(
        name=f"log.{metrics}.bytes_a_point",
        value=round(used / (calls * metrics), 1),
        unit="B",
        at_most=40.0 if few else 9.6,
    )


def size_of(recorder: RunRecorder) -> int:
    """Bytes of the metrics so far."""
    return metrics_state(recorder.folder.metrics)[0]


def loops_on(device: str, steps: int, rounds: int) -> list[Figure]:
    """What the host has to do for a step of a GPU."""
    settle()
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder, recorded_in(Path(folder)) as recorder:
        batches = pinned(batches_of(steps))
        pairs = {
            "bare": Pair(bare_by_hand(batches, device=device), by_engine(batches, device=device)),
            "working": Pair(
                working_by_hand(batches, max_norm=ALWAYS_BITES, device=device),
                by_engine(
                    batches, max_norm=ALWAYS_BITES, device=device, recorder=recorder, bar=True
                ),
            ),
        }
        time_in_turn(pairs.values(), rounds)
        for name, pair in pairs.items():
            for side, took in ("hand", pair.hand_s), ("engine", pair.engine_s):
                us = median(took) / steps * 1e6
                found.append(Figure(name=f"steps.{name}.{side}_us", value=us, unit="us"))
                waits = waits_in(getattr(pair, side)) / steps
                found.append(Figure(name=f"steps.{name}.{side}_waits", value=waits))
            check_equal(name, pair)
    return found


def in_a_process_of_its_own(steps: int, rounds: int) -> list[Figure]:
    settle()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with (
            recorded_in(home) as recorder,
            open(home / "by-hand.csv", "w", encoding="utf-8") as log,
        ):
            return [*loops(steps, rounds, recorder, log, home / "trace.bin")]


def main() -> None:
    asked = options("What a training step and a log call cost.", has_device=True)
    where = machine()
    if asked.device != "cpu":
        where["device"] = torch.cuda.get_device_name(asked.device)
        figures = loops_on(asked.device, *((100, 1) if asked.quick else (500, 9)))
        show("steps: the host of a GPU", figures, where, as_json=asked.as_json)
        return
    processes, steps, rounds, calls = (1, 100, 1, 5_000) if asked.quick else (5, 500, 15, 500_000)
    figures = over_processes(processes, in_a_process_of_its_own, steps, rounds)
    settle()
    for metrics in (1, 20):
        runs = []
        for _ in range(processes):
            with tempfile.TemporaryDirectory() as folder, recorded_in(Path(folder)) as recorder:
                runs.append([*log_calls(recorder, metrics, calls)])
        figures += middle(runs)
    show("steps: the engine against the same loop by hand", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    main()
