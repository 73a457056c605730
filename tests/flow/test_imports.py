"""User modules are imported once for all that a command does with one config."""

from __future__ import annotations

from pathlib import Path

import pytest

from flow.conftest import Assay

POINTS = """\
import os
with open("imports.txt", "a") as file:
    file.write(f"{os.getpid()}\\n")

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 2):
        super().__init__()
        self.layer = nn.Linear(2, width)

    def forward(self, x):
        return self.layer(x)


class Points:
    randomness = "none"

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([float(i), 1.0]), i % 2
"""
TOML = """\
[model]
type = "points.Net"
[data.train]
source = { type = "points.Points" }
batch_size = 4
[data.valid]
source = { type = "points.Points" }
batch_size = 4
[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
[optimizer]
type = "torch.optim.SGD"
lr = 0.1
[train]
epochs = 1
"""
PYTHON = """\
from assay.config import L
from points import Net, Points
model = L(Net)()
data = dict(
    train=dict(source=L(Points)(), batch_size=4), valid=dict(source=L(Points)(), batch_size=4)
)
process = L("assay.engine.Supervised")(criterion=L("torch.nn.CrossEntropyLoss")())
optimizer = L("torch.optim.SGD")(lr=0.1)
train = dict(epochs=1)
"""


@pytest.mark.parametrize(
    ("command", "imports"),
    [
        (("check", "a.toml"), 1),
        (("check", "a.py"), 1),
        (("run", "a.toml", "--device", "cpu"), 1),
        (("run", "a.py", "--device", "cpu"), 1),
        # The check, and each of two trials: no run sees what another left in a module.
        (("sweep", "s.toml", "--device", "cpu", "--metric", "valid/loss:min"), 3),
    ],
)
def test_a_module_is_imported_once_for_a_check_and_once_for_each_run(
    assay: Assay, toy: Path, command: tuple[str, ...], imports: int
) -> None:
    sweep = '[sweep]\n"optimizer.lr" = [0.1, 0.2]\n'
    for name, text in {"a.toml": TOML, "a.py": PYTHON, "s.toml": TOML + sweep}.items():
        (toy / name).write_text(text)
    (toy / "points.py").write_text(POINTS)

    done = assay(*command)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len((toy / "imports.txt").read_text().split()) == imports
