"""`assay check --resume`: what a resumed run has otherwise is named, and later starts say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.compose.resume_verdict import is_of_design
from assay.engine import Supervised
from engine.toys import engine

pytestmark = pytest.mark.slow

CODE = """
import time

import torch
from torch import nn

from assay.engine import OptimizerStep, Process


class Data:
    def __init__(self, n):
        self.x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i].argmax()


class Own(Process):
    KEEPS

    def __init__(self, model, optimizer):
        self.model, self.backward = model, OptimizerStep(optimizer)
        self.seen, self.begun = 0, time.time()

    def forward_step(self, batch):
        self.seen += 1
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        return loss * (1 + 0.01 * self.seen), {}
"""

CONFIG = """
model = { type = "torch.nn.Linear", in_features = 3, out_features = 3 }
process = { type = "own.Own" }
optimizer = { type = "torch.optim.SGD", lr = 0.05 }
train = { epochs = 2 }

[data.train]
source = { type = "own.Data", n = 40 }
batch_size = 8
"""


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_plain_attribute_that_a_resumed_run_lacks_is_named_and_the_next_start_says_it(
    is_kept: bool, assay, toy: Path
) -> None:
    keeps = 'keeps = ("seen",)' if is_kept else '"Keeps nothing."'
    (toy / "own.py").write_text(CODE.replace("KEEPS", keeps))
    (toy / "own.toml").write_text(CONFIG)

    first = assay("run", "own.toml", "--max-steps", "1", "--device", "cpu")
    tried = assay("check", "own.toml", "--resume", "--device", "cpu")
    later = assay("run", "own.toml", "--max-steps", "1", "--device", "cpu")

    assert "resume: not tried: assay check --resume own.toml" in first.stderr + first.stdout
    assert tried.returncode == (0 if is_kept else 1), tried.stdout + tried.stderr
    assert ("process.seen is not kept" in tried.stdout) is not is_kept
    assert "begun" not in tried.stdout
    verdict = "equal (resumed from step 5 of 10)" if is_kept else "not equal: your code: process"
    said = later.stderr + later.stdout
    assert "resume: tried on " in said and f": {verdict}" in said


class Plain(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(()))
        vars(self).update(attributes)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Counting(nn.MSELoss):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0


@pytest.mark.parametrize(
    ("model", "criterion", "is_whole"),
    [
        (nn.Linear(4, 2), nn.MSELoss(), True),
        (Plain(), nn.MSELoss(), True),
        (Plain(gain=1.0), nn.MSELoss(), False),
        (Plain(carried=torch.zeros(2)), nn.MSELoss(), False),
        (nn.Sequential(Plain(past=[])), nn.MSELoss(), False),
        (nn.Linear(4, 2), Counting(), False),
    ],
)
def test_only_a_model_of_which_all_is_kept_is_exact_by_design(
    model: nn.Module, criterion: nn.Module, is_whole: bool
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert is_of_design(engine(Supervised(model, criterion, optimizer))) is is_whole
