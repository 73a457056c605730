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


PROGRAMS = """
import itertools
import time

import numpy as np
import torch
from own import Own as Base

DRAWS = np.random.default_rng(3)
CALLS = [0]


class Half:
    def __init__(self):
        self.n = 0

    def state_dict(self):
        return {"n": self.n}


class Own(Base):
    n = 0

    def __init__(self, model, optimizer, how):
        super().__init__(model, optimizer)
        self.adam, self.how, self.half, self.past, self.names = optimizer, how, Half(), {}, {"a", "b", "c"}
        self.count, self.last, self.times = itertools.count(), 0.0, []
        self.schedules = {"x": [torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)]}

    def forward_step(self, batch):
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        if not torch.is_grad_enabled():
            return loss, {"loss": loss}
        return loss * (1 + 0.01 * getattr(self, self.how)(batch, loss)), {"loss": loss.detach()}

    def update(self, step):
        done = super().update(step)
        self.schedules["x"][0].step()
        return done

    def clock(self, batch, loss):
        self.times.append(time.time())
        self.log("seconds", time.time() % 1000)
        return 0

    def printed(self, batch, loss):
        print("loss", loss.item(), time.time())
        return 0

    def address(self, batch, loss):
        self.last = id(batch)
        return 0

    def recent(self, batch, loss):
        self.last = loss.item()
        return 0

    def late(self, batch, loss):
        drawn = next(iter(self.adam.state.values()), {"step": 0})["step"] > 6
        return np.random.rand() if drawn else 0

    def generator(self, batch, loss):
        return DRAWS.random()

    def calls(self, batch, loss):
        CALLS[0] += 1
        return CALLS[0]

    def of_class(self, batch, loss):
        Own.n += 1
        return Own.n

    def half_pair(self, batch, loss):
        self.half.n += 1
        return self.half.n

    def counted(self, batch, loss):
        return next(self.count)

    def tensors(self, batch, loss):
        before = sum(each.mean() for each in self.past.values())
        self.past["a"] = batch[0].mean(0)
        return before

    def growing(self, batch, loss):
        self.names.add(f"n{len(self.names)}")
        return 0
"""

RIGHT: dict[str, str | None] = {
    **dict.fromkeys(("clock", "printed", "address", "recent", "late")),
    "generator": "weights       differs",
    "calls": "weights       differs",
    "of_class": "weights       differs",
    "counted": "weights       differs",
    "half_pair": "process.half.n is not kept",
    "tensors": "weights       differs",
    "growing": "process.names is not kept",
}
"""What the test of a program names, None for one that is equal."""


@pytest.mark.thorough
@pytest.mark.parametrize("how", RIGHT)
def test_a_program_is_equal_or_what_it_lacks_is_named(how: str, assay, toy: Path) -> None:
    (toy / "own.py").write_text(CODE.replace("KEEPS", '"Keeps nothing."'))
    (toy / "programs.py").write_text(PROGRAMS)
    (toy / "own.toml").write_text(CONFIG.replace("own.Own", "programs.Own"))
    valid = 'data.valid={ source = { type = "own.Data", n = 16 }, batch_size = 8 }'
    adam = "optimizer.type=torch.optim.Adam"
    arguments = (f"process.how={how}", f"+{valid}", '+evaluate.every="3 steps"', adam)

    tried = assay("check", "own.toml", "--resume", "--device", "cpu", *arguments)

    said, right = tried.stdout + tried.stderr, RIGHT[how]
    assert tried.returncode == (0 if right is None else 1), said
    assert (right or "resume: equal") in said


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
