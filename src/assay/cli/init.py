"""`assay init`."""

from __future__ import annotations

from pathlib import Path

import click

from assay.cli.terminal import echo
from assay.core.errors import InputError

_CONFIG = """\
tag = "first"
seed = 0

[model]
type = "model.Net"
width = 32

[data.train]
source = { type = "data.Spiral", split = "train" }
batch_size = 64
[data.valid]
source = { type = "data.Spiral", split = "valid" }
batch_size = 256
[data.test]
source = { type = "data.Spiral", split = "test" }
batch_size = 256

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
metrics = { acc = { type = "assay.engine.Accuracy" } }

[optimizer]
type = "torch.optim.AdamW"
lr = 1e-2

[schedule]
type = "assay.engine.WarmupCosine"
warmup_ratio = 0.05

[train]
epochs = 10

[checkpoint]
best = { metric = "valid/acc", mode = "max" }
"""

_MODEL = '''\
"""The model."""

from torch import Tensor, nn


class Net(nn.Module):
    """Points of the plane to scores of two classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
'''

_DATA = '''\
"""The data: two arms of a spiral, made here. Put your own in its place."""

import math

import torch
from torch import Tensor

_SEEDS = {"train": 0, "valid": 1, "test": 2}


class Spiral:
    """Points (x, y) and the arm, 0 or 1, that each belongs to."""

    randomness = "none"

    def __init__(self, split: str, size: int = 1000) -> None:
        draw = torch.Generator().manual_seed(_SEEDS[split])
        self.target = torch.arange(size) % 2
        turn = torch.rand(size, generator=draw) * 2 * math.pi
        angle = turn + math.pi * self.target
        points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / math.pi
        self.points = points + 0.05 * torch.randn(size, 2, generator=draw)

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.target[index]
'''

_TEST = '''\
"""Run with: python -m pytest"""

import torch
from data import Spiral
from model import Net


def test_the_model_gives_two_scores_a_point() -> None:
    points = torch.stack([Spiral("test")[i][0] for i in range(8)])
    assert Net(width=4)(points).shape == (8, 2)


def test_splits_differ() -> None:
    assert not torch.equal(Spiral("train").points, Spiral("valid").points)
'''

FILES = {"config.toml": _CONFIG, "model.py": _MODEL, "data.py": _DATA, "test_project.py": _TEST}


@click.command(
    name="init",
    help="Make a project to begin with: a config, a model, data and a test that run as they are.",
)
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def command(folder: Path) -> int:
    from assay.store.layout import open_project, refusal

    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise InputError(
            f"{folder} already has {', '.join(there)}: nothing was written.",
            fix="assay init NEW_FOLDER",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise refusal(error, folder, "The project cannot be made") from error
    home = open_project(folder, create=True)
    echo(f"made in {folder.resolve()}:")
    echo(f"  {', '.join(FILES)}")
    if home.root.resolve() != folder.resolve():
        echo(f"part of the project around it, with its runs: {home.root}")
    echo("next:")
    prefix = f"cd {folder} && " if folder != Path() else ""
    echo(f"  {prefix}assay run config.toml")
    return 0
