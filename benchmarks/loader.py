"""Cost of keyed randomness: a `Loader` beside torch's `DataLoader` over the same data.

`images` are uint8 of 3x256x256 of which each sample is a crop of 3x224x224, mirrored or not,
normalised; the draws come from `random`. `tiny` samples cost next to nothing, so that a loader's
own cost stands out, in microseconds. The loaders take turns in one process, a few batches each. The
figures are the best round of each and the median of the ratios of neighbours. They are CPU time
without workers, as it depends less on what else runs, else wall time.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from figures import Figure, machine, options, show
from torch.utils.data import DataLoader

from assay.engine import Loader
from assay.engine.data.plan import Plan

BATCH = 32


class Images:
    """Photographs in memory, augmented as is usual."""

    def __init__(self, size: int) -> None:
        self.images = torch.randint(0, 256, (size, 3, 256, 256), dtype=torch.uint8)
        self.mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
        self.scale = 1 / (torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        top, left = random.randint(0, 32), random.randint(0, 32)
        image = self.images[i, :, top : top + 224, left : left + 224]
        if random.random() < 0.5:
            image = image.flip(2)
        return (image - self.mean).mul_(self.scale), i % 10


class Tiny:
    """Samples that are there already."""

    def __init__(self, size: int) -> None:
        self.rows = torch.randn(size, 8)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.rows[i]


class TinyAtOnce(Tiny):
    """The same, a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self.rows[i] for i in indices]


class TinyDrawn(Tiny):
    """The same, with a number drawn from one global generator or from all of them."""

    def __init__(self, size: int, *draws: Callable[[], object]) -> None:
        super().__init__(size)
        self.draws = draws

    def __getitem__(self, i: int) -> torch.Tensor:
        for draw in self.draws:
            draw()
        return self.rows[i]


def forever(one_epoch: Callable[[int], Iterator[Any]]) -> Iterator[Any]:
    epoch = 0
    while True:
        yield from one_epoch(epoch)
        epoch += 1


def plain(dataset: Any, workers: int = 0) -> Iterator[Any]:
    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return forever(lambda epoch: iter(loader))


def keyed(dataset: Any, randomness: Any, workers: int = 0) -> Iterator[Any]:
    loader = Loader(
        dataset, batch_size=BATCH, shuffle=True, seed=1, randomness=randomness, workers=workers
    )
    return forever(lambda epoch: loader.windows(epoch, 0))


def compared(
    one: Iterator[Any],
    other: Iterator[Any],
    rounds: int,
    batches: int,
    clock: Callable[[], float] = process_time,
) -> tuple[float, float, float]:
    """Microseconds a batch in the best round of each, and the median ratio of neighbouring rounds.

    The ratio is that of `other` to `one`.
    """
    for each in (one, other):  # what is paid once: workers are started, memory is touched
        for _ in islice(each, 2 * batches):
            pass
    took: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        turns = [(one, took[0]), (other, took[1])]
        for each, times in turns if number % 2 else reversed(turns):
            begun = clock()
            for _ in islice(each, batches):
                pass
            times.append((clock() - begun) / batches * 1e6)
    ratio = statistics.median(b / a for a, b in zip(*took, strict=True))
    return min(took[0]), min(took[1]), ratio


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    given = options("what keyed randomness costs a loader", argv)
    torch.set_num_threads(1)
    rounds = 3 if given.quick else 41
    images = Images(128 if given.quick else 1024)
    figures = []
    for workers in (0, 2):
        name, count = f"loader.images.w{workers}", 2 if given.quick else 8
        clock = perf_counter if workers else process_time
        one, other, ratio = compared(
            plain(images, workers), keyed(images, "sample", workers), rounds, count, clock
        )
        figures += [
            Figure(name=f"{name}.plain_us", value=one, unit="us"),
            Figure(name=f"{name}.keyed_us", value=other, unit="us"),
            Figure(name=f"{name}.ratio", value=ratio, at_most=1.10),
        ]
    del images
    tiny, at_once = Tiny(8192), TinyAtOnce(8192)
    draws = (random.random, np.random.random_sample, draw_of_torch)
    count = 16 if given.quick else 128
    sides = (
        ("sample", tiny, "sample", "a_sample_us", BATCH, 15.0),
        ("random", TinyDrawn(8192, random.random), "sample", "a_sample_us", BATCH, 15.0),
        ("three", TinyDrawn(8192, *draws), "sample", "a_sample_us", BATCH, 15.0),
        ("batch", at_once, "batch", "a_batch_us", 1, 150.0),
        ("none", tiny, "none", "a_batch_us", 1, 20.0),
    )
    for name, data, randomness, what, divisor, most in sides:
        one, other, _ = compared(plain(data), keyed(data, randomness), rounds, count)
        figures += [
            Figure(name=f"loader.tiny.{name}.plain_us", value=one, unit="us"),
            Figure(
                name=f"loader.tiny.{name}.{what}",
                value=(other - one) / divisor,
                unit="us",
                at_most=most,
            ),
        ]
    figures.append(Figure(name="loader.seek_ms", value=seek_ms(rounds), unit="ms", at_most=10.0))
    show("loader", figures, machine(), as_json=given.as_json)
    return 0


def draw_of_torch() -> torch.Tensor:
    return torch.rand(1)


def seek_ms(rounds: int) -> float:
    """Longest CPU time of a first batch from position 1e7 of a shuffled epoch of 1e9 samples."""
    longest = 0.0
    for epoch in range(rounds):
        begun = process_time()
        next(Plan(1_000_000_000, seed=1, shuffle=True).blocks(epoch, 10_000_000, BATCH))
        longest = max(longest, process_time() - begun)
    return longest * 1e3


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
