"""Two hundred kills: a run is killed at random steps, each time with other workers, and has to end with the same bits.

The model has dropout and batch norm, the data are augmented by all three random generators, two micro-batches make one
step, and the weights are averaged; nearly all kills fall within an epoch. What is counted are the things that differ
from the run that nobody disturbed: there must be none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from figures import Figure, machine, options, show

from assay.compose import Launch, verify_resume
from assay.config import load

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 2)
        )

    def forward(self, x):
        return self.layers(x)
"""

POINTS = """
import random

import numpy as np
import torch

class Points:
    def __init__(self, size=600):
        draw = torch.Generator().manual_seed(0)
        self.points = torch.randn(size, 4, generator=draw)
        self.labels = (self.points.sum(1) > 0).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        noise = torch.randn(4) + random.random() + float(np.random.rand())
        return self.points[i] + 0.1 * noise, self.labels[i]
"""

CONFIG = """
tag = "soak"
seed = 3
plugins = [{ type = "assay.engine.EMA", decay = 0.99 }]

[model]
type = "net.Net"
width = 8

[data.train]
source = { type = "points.Points" }
batch_size = 8

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }

[optimizer]
type = "torch.optim.AdamW"
lr = 1e-3

[train]
accumulate = 2
clip_norm = 1.0

[checkpoint]
keep = 2
"""

WORKERS = (0, 2, 4)


def main(argv: Sequence[str] | None = None) -> int:
    """Kill, resume, compare; 1 when anything differs."""
    given = options("whether a run that is killed again and again ends with the same bits", argv)
    kills, steps = (3, 60) if given.quick else (200, 3000)
    with tempfile.TemporaryDirectory(prefix="assay-soak-") as folder:
        for name, text in {"soak.toml": CONFIG, "net.py": NET, "points.py": POINTS}.items():
            (Path(folder) / name).write_text(text)
        check = verify_resume(
            load(Path(folder) / "soak.toml", [f"train.steps={steps}"]),
            Launch(device="cpu"),
            kills=kills,
            seed=1,
            vary=lambda attempt: [f"data.train.workers={WORKERS[attempt % 3]}"],
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )
    differing = [each for each in check.compared if each.differences]
    for each in differing:
        print(f"{each.name} differs: {', '.join(each.differences)}", file=sys.stderr)
    figures = [
        Figure(name="soak.steps", value=check.steps),
        Figure(name="soak.kills", value=len(check.killed_at)),
        Figure(name="soak.compared", value=len(check.compared)),
        Figure(name="soak.differing", value=len(differing), at_most=0),
    ]
    show("soak", figures, machine(), as_json=given.as_json)
    return int(bool(differing))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
