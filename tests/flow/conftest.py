"""Toy project that is hard to resume: dropout, batch norm, augmentation by 3 generators."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warm_python import Begin, Process, Run, run

SRC = Path(__file__).resolve().parents[2] / "src"

CONFIG = """\
tag = "toy"
seed = 3

[model]
type = "net.Net"
width = 8

[data.train]
source = { type = "points.Points", split = 0, noisy = true }
batch_size = 8
[data.valid]
source = { type = "points.Points", split = 1 }
batch_size = 16
[data.test]
source = { type = "points.Points", split = 2 }
batch_size = 16

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
metrics = { acc = { type = "assay.engine.Accuracy" } }

[optimizer]
type = "torch.optim.AdamW"
lr = 1e-2

[schedule]
type = "assay.engine.WarmupCosine"
warmup_ratio = 0.1

[train]
epochs = 4
clip_norm = 1.0

[checkpoint]
every = "3 steps"
keep = 2
best = { metric = "valid/acc", mode = "max" }
"""

NET = """\
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

POINTS = """\
import os
import random
import signal
import time

import numpy as np
import torch

class Points:
    def __init__(self, split, noisy=False, size=60):
        draw = torch.Generator().manual_seed(split)
        self.points = torch.randn(size, 4, generator=draw)
        self.labels = (self.points.sum(1) > 0).long()
        self.noisy = noisy
        self.loaded = 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        x = self.points[i]
        if self.noisy:
            self.loaded += 1
            if self.loaded == int(os.environ.get("DIE_AT", 0)):
                os.kill(os.getpid(), getattr(signal, os.environ.get("DIE_BY", "SIGKILL")))
            x = x + 0.1 * torch.randn(4) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return x, self.labels[i]
"""

Assay = Callable[..., "subprocess.CompletedProcess[str]"]


SHY = """\
import os
import signal
import time

import points


class Shy(points.Points):
    '''One rank dies, fails or is slow at a sample of its own.'''

    def __getitem__(self, i):
        item = super().__getitem__(i)
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
        if self.noisy and rank == os.environ.get("SHY_RANK", "1"):
            print("rank 1 loads", i)
            time.sleep(float(os.environ.get("SLOW", 0)))
            if self.loaded == int(os.environ.get("KILL_AT", 0)):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.loaded == int(os.environ.get("STOP_AT", 0)):
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.loaded == int(os.environ.get("FAIL_AT", 0)):
                raise ValueError("a bad sample")
        return item
"""
PLAIN = """\
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(4, width), nn.Tanh(), nn.Dropout(0.3), nn.Linear(width, 2))
"""


@pytest.fixture(scope="session")
def toy_files() -> Callable[[Path], None]:
    """Write the files of the toy project into a folder."""

    def write(folder: Path) -> None:
        for name, text in {"toy.toml": CONFIG, "net.py": NET, "points.py": POINTS}.items():
            (folder / name).write_text(text)

    return write


@pytest.fixture
def toy(tmp_path: Path, toy_files: Callable[[Path], None]) -> Path:
    """The folder of the toy project; its config is `toy.toml`."""
    folder = tmp_path / "toy project"
    folder.mkdir()
    toy_files(folder)
    return folder


@pytest.fixture
def shy(toy: Path) -> None:
    """Toy project with an OS process that dies, stops or fails at a sample set by variables."""
    (toy / "shy.py").write_text(SHY)
    (toy / "plain.py").write_text(PLAIN)
    config = (
        (toy / "toy.toml").read_text().replace('points.Points", split = 0', 'shy.Shy", split = 0')
    )
    (toy / "toy.toml").write_text(config)


@contextmanager
def as_it_was(run: Path) -> Iterator[Path]:
    """Restore a run folder afterwards, so that a killed run can be resumed in several ways."""
    kept = run.parent.parent / "kept"
    shutil.copytree(run, kept)
    try:
        yield run
    finally:
        shutil.rmtree(run)
        kept.rename(run)


@pytest.fixture
def assay(toy: Path, warm: Run) -> Assay:
    """Runs a command as a process of its own, in the toy project."""
    return commands(warm, toy)


@pytest.fixture
def cold_assay(toy: Path) -> Assay:
    """The same in an interpreter that starts from nothing, as a user's does."""
    return commands(run, toy)


def commands(run: Run, toy: Path) -> Assay:
    def call(
        *arguments: str, cwd: Path = toy, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        own = {**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1", **variables}
        return run(["-m", "assay", *arguments], folder=cwd, variables=own)

    return call


@pytest.fixture
def begun(toy: Path, begin: Begin) -> Begin:
    """Starts a command in the toy project as a process that goes on; its errors are read."""

    def start(*arguments: str, **variables: str) -> Process:
        own = {**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1", **variables}
        return begin("-m", "assay", *arguments, folder=toy, variables=own, reads="stderr")

    return start


def wait_for(happened: Callable[[], object]) -> None:
    """Return when something has happened; TimeoutError."""
    until = time.monotonic() + 100
    while time.monotonic() < until:
        if happened():
            return
        time.sleep(0.05)
    raise TimeoutError("it has not happened")
