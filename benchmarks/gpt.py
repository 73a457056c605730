"""GPT of the examples, trained by the engine and by hand: the engine's cost for a real model.

By hand: AdamW in its fused form, a warm-up and cosine by `LambdaLR`, `clip_grad_norm_`, the losses
kept in a list. The engine: the same, with loss, norm and learning rate on disk at every step, and a
bar. Both train on the same list of batches, in turn, on one thread; the figures are medians over
rounds and processes, in CPU time. Both must end with equal bits.

On a GPU (`--device cuda`) the model has the size of GPT-2 (124 M), and random letters in
page-locked batches. It is trained in fp32, under autocast to bf16, and with compiled blocks; by
hand nothing waits for the device until a round is over. `ratio` is of the time by the clock until
the device is done, `memory_ratio` of the most memory of a side that was alone, `mfu` the share of
the engine in what the data sheet promises for bf16, of 6 operations for each weight and letter and
12 for each layer, feature and place of the context. Two layers of it must end with equal bits,
where torch uses deterministic algorithms.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TERM"] = "xterm-256color"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what it is on newer GPUs anyway

import gc
import logging
import runpy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

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
    moved,
    over_processes,
    pinned,
    recorded_in,
    settle,
    time_in_turn,
    warmup_cosine,
)
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from assay.core.ports import Recorder
from assay.engine import Display, Engine, OptimizerStep, Supervised, WarmupCosine
from assay.engine.callbacks.resources import peak_tflops
from assay.engine.model.compiling import compile_model
from assay.engine.numerics.precision import in_precision

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "03_gpt"
NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Model, and how it is trained."""

    letters: int = 128
    context: int = 48
    width: int = 64
    layers: int = 2
    heads: int = 4
    batch: int = 32
    rate: float = 1e-2
    device: str = "cpu"
    precision: str = "fp32"
    compiles: bool = False

    @property
    def name(self) -> str:
        return f"{self.precision}_compiled" if self.compiles else self.precision

    def network(self) -> tuple[nn.Module, AdamW]:
        torch.manual_seed(0)
        made = runpy.run_path(str(EXAMPLE / "model.py"))["GPT"]
        model = made(self.letters, self.context, self.width, self.layers, self.heads)
        model.to(self.device)
        if self.compiles:
            compile_model(model, "blocks")
        return model, AdamW(model.parameters(), lr=self.rate, betas=(0.9, 0.95), fused=True)

    def autocast(self) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device, torch.bfloat16)

    def batches(self, steps: int) -> Batches:
        if self.device != "cpu":
            draw = torch.Generator().manual_seed(1)
            shape = self.batch, self.context + 1
            drawn = [torch.randint(self.letters, shape, generator=draw) for _ in range(steps)]
            return pinned([(each[:, :-1], each[:, 1:]) for each in drawn])
        data = runpy.run_path(str(EXAMPLE / "data.py"))["Manual"]("train", self.context)
        items = [data[i] for i in range(self.batch * steps)]
        columns = [torch.stack(column) for column in zip(*items, strict=True)]
        return list(zip(*(column.split(self.batch) for column in columns), strict=True))


SMALL = Work()
LARGE = Work(letters=50304, context=1024, width=768, layers=12, heads=12, batch=16, rate=3e-4)


class CrossEntropy(nn.CrossEntropyLoss):
    """Of scores (batch, letters, length), in a form that has a deterministic kernel on GPUs."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input.transpose(1, 2).flatten(0, 1), target.flatten())


def by_hand(work: Work, batches: Batches) -> Side:
    model, optimizer = work.network()
    criterion = CrossEntropy()
    factor = warmup_cosine(len(batches))
    device = work.device

    def ready() -> Loop:
        scheduler = LambdaLR(optimizer, factor)
        losses: list[Any] = []
        keep = Tensor.item if device == "cpu" else Tensor.detach

        def loop() -> None:
            for inputs, target in moved(batches, device):
                with work.autocast():
                    loss = criterion(model(inputs), target)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(keep(loss))
            if device != "cpu":
                torch.stack(losses).tolist()

        return loop

    return Side(model, ready)


def by_engine(work: Work, batches: Batches, recorder: Recorder) -> Side:
    model, optimizer = work.network()
    criterion = CrossEntropy()
    device = torch.device(work.device)

    def ready() -> Loop:
        schedule = WarmupCosine(warmup_ratio=WARMUP, start=0.001)
        process = Supervised(
            model, criterion, backward=OptimizerStep(optimizer, schedule=schedule, clip_norm=NORM)
        )
        process.forward_step = in_precision(work.precision, device, process.forward_step)  # type: ignore[method-assign]
        display = Display(logger=logging.getLogger("benchmark"), stream=Terminal())
        return Engine(
            process, batches, recorder=recorder, handlers=display.handlers(), device=device
        ).run

    return Side(model, ready)


def measured(steps: int, rounds: int, recorder: Recorder) -> Iterator[Figure]:
    batches = SMALL.batches(steps)
    pair = Pair(by_hand(SMALL, batches), by_engine(SMALL, batches, recorder))
    time_in_turn([pair], rounds)
    check_equal("gpt", pair)
    yield Figure(name="gpt.hand_ms", value=median(pair.hand_s) / steps * 1e3, unit="ms")
    yield Figure(name="gpt.over_us", value=pair.over_s() / steps * 1e6, unit="us")
    yield Figure(name="gpt.ratio", value=pair.ratio(), at_most=1.01)


def in_a_process_of_its_own(steps: int, rounds: int) -> list[Figure]:
    settle()
    with tempfile.TemporaryDirectory() as folder, recorded_in(Path(folder)) as recorder:
        return [*measured(steps, rounds, recorder)]


# ---------------------------------------------------------------------------------------------------------- on a device


def measured_on(work: Work, steps: int, rounds: int, recorder: Recorder) -> Iterator[Figure]:
    """Figures of one way to train on a GPU."""
    check_bits(replace(work, layers=2), recorder)
    batches = work.batches(steps)

    def hand() -> Side:
        return by_hand(work, batches)

    def engine() -> Side:
        return by_engine(work, batches, recorder)

    peaks = [peak_alone(hand), peak_alone(engine)]
    pair = Pair(hand(), engine())

    def clock() -> float:
        torch.cuda.synchronize()
        return perf_counter()

    time_in_turn([pair], rounds, clock=clock)
    weights = sum(weight.numel() for weight in pair.hand.model.parameters())
    each = 6 * weights + 12 * work.layers * work.width * work.context
    speed = steps * work.batch * work.context / median(pair.engine_s)
    name = f"gpt.{work.name}"
    hand_ms = median(pair.hand_s) / steps * 1e3
    spread = ", ".join(f"{e / h:.4f}" for e, h in zip(pair.engine_s, pair.hand_s, strict=True))
    yield Figure(name=f"{name}.hand_ms", value=hand_ms, unit="ms")
    yield Figure(name=f"{name}.ratio", value=pair.ratio(), at_most=1.01, note=spread)
    yield Figure(name=f"{name}.letters_per_s", value=round(speed))
    peak = peak_tflops(torch.device(work.device))
    if peak is not None:
        yield Figure(name=f"{name}.mfu", value=speed * each / (peak * 1e12))
    yield Figure(name=f"{name}.memory_mib", value=peaks[1] / 2**20, unit="MiB")
    yield Figure(name=f"{name}.memory_ratio", value=peaks[1] / peaks[0], at_most=1.01)


def check_bits(work: Work, recorder: Recorder) -> None:
    """Train a few steps both ways with deterministic algorithms, to equal bits."""
    torch.use_deterministic_algorithms(True)
    batches = work.batches(4)
    pair = Pair(by_hand(work, batches), by_engine(work, batches, recorder))
    for side in (pair.hand, pair.engine):
        side.ready()()
    check_equal(work.name, pair)
    torch.use_deterministic_algorithms(False)


def peak_alone(made: Callable[[], Side]) -> int:
    """Return the most bytes on the device while one side trains and the other is not there."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made().ready()()
    return torch.cuda.max_memory_allocated() - before


def on_device(device: str, *, quick: bool) -> list[Figure]:
    ways = (("bf16", True, 20), ("bf16", False, 20), ("fp32", False, 8))
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder, recorded_in(Path(folder)) as recorder:
        for precision, compiles, steps in ways:
            work = replace(LARGE, device=device, precision=precision, compiles=compiles)
            found += measured_on(work, 4 if quick else steps, 1 if quick else 5, recorder)
    return found


def main() -> None:
    asked = options("What the engine costs on a real model.", has_device=True)
    where = machine()
    if asked.device != "cpu":
        where["device"] = torch.cuda.get_device_name(asked.device)
        figures = on_device(asked.device, quick=asked.quick)
    else:
        processes, steps, rounds = (1, 4, 1) if asked.quick else (5, 100, 9)
        figures = over_processes(processes, in_a_process_of_its_own, steps, rounds)
    show("gpt: the engine against the same loop by hand", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    main()
