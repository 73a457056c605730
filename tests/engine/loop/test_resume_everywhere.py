"""A run resumed from any of its steps has every bit of the whole one: one driver, small programs."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as rates
from torch.optim.swa_utils import AveragedModel

from assay.core.ports import MemoryRecorder
from assay.engine import (
    EMA,
    EarlyStop,
    Engine,
    Evaluate,
    Loader,
    MultiOptimizerStep,
    OptimizerStep,
    Process,
    Save,
    Saver,
    SetValue,
    Supervised,
    TorchSchedule,
    WarmupCosine,
    evaluate,
)
from assay.engine.checkpoint.folder import load_parts
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import hard_net, loader, net, points, same_bits, supervised

STEPS = 9
"""Three epochs of three steps."""


def sgd(*models: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    weights = [weight for model in models for weight in model.parameters()]
    return torch.optim.SGD(weights, lr=lr, momentum=0.5)


class Game(Process):
    """Two networks in turn, each with an optimizer of the engine."""

    def __init__(self, every: dict[str, int] | None = None) -> None:
        self.model = nn.ModuleDict({"gen": nn.Linear(4, 2), "critic": nn.Linear(2, 1)})
        parts = {name: OptimizerStep(sgd(part)) for name, part in self.model.items()}
        self.backward = MultiOptimizerStep(parts, every=every)

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        made = self.model["gen"](batch[0])
        judged = self.model["critic"](made.detach()).mean() - self.model["critic"](batch[1]).mean()
        return {"gen": -self.model["critic"](made).mean(), "critic": judged.square()}, {}


class Older:
    """Trainer without a base class, which makes its updates with all that it holds."""

    def __init__(self) -> None:
        self.model, self.critic = net(), nn.Linear(2, 1)
        self.optimizer, self.optim_d = sgd(self.model), torch.optim.Adam(self.critic.parameters())
        self.schedules = [
            rates.StepLR(self.optim_d, 2, 0.5),
            rates.ExponentialLR(self.optimizer, 0.9),
        ]
        self.average = {"ema": AveragedModel(self.model)}
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        self.noise = torch.Generator().manual_seed(5)

    def training_step(self, batch: Any) -> dict[str, Any]:
        out = self.model(batch[0] + torch.rand(1, generator=self.noise))
        loss = nn.functional.mse_loss(out, batch[1]) + self.critic(out).square().mean()
        for optimizer in (self.optimizer, self.optim_d):
            optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for optimizer in (self.optimizer, self.optim_d):
            self.scaler.step(optimizer)
        self.scaler.update()
        for schedule in self.schedules:
            schedule.step()
        self.average["ema"].update_parameters(self.model)
        return {"loss": loss.detach()}

    def update(self) -> None: ...

    def forward_step(self, batch: Any) -> Any:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1]), {}


class Taught(Process):
    """Distillation from a teacher that follows the model slowly, and one that never moves."""

    def __init__(self) -> None:
        self.model, self.frozen = net(), net(seed=3).requires_grad_(False)
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        self.temperature = nn.Parameter(torch.ones(1))
        self.backward = OptimizerStep(
            torch.optim.Adam([*self.model.parameters(), self.temperature], lr=0.01)
        )

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        out = self.model(batch[0]) * self.temperature
        told = self.teacher(batch[0]) + self.frozen(batch[0])
        return nn.functional.mse_loss(out, told), {}

    @torch.no_grad()
    def update(self, step: int) -> bool:
        with torch.enable_grad():
            done = super().update(step)
        for own, other in zip(self.teacher.parameters(), self.model.parameters(), strict=True):
            own.lerp_(other, 0.3)
        return done


class Carried(Process):
    """State that is carried from batch to batch, and a curriculum that begins to draw late."""

    keeps = ("hidden", "seen")

    def __init__(self) -> None:
        self.model = nn.RNNCell(4, 2)
        self.backward = OptimizerStep(sgd(self.model))
        self.hidden: Any = None
        self.seen = 0

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        x, y = batch
        self.seen += len(x)
        if self.seen > 40:
            x = x * np.random.rand() + random.random()
        start = torch.zeros(2) if self.hidden is None else self.hidden
        out = self.model(x, start.expand(len(x), 2).contiguous())
        self.hidden = out.detach().mean(0)
        return nn.functional.mse_loss(out, y), {}


class Adapter(nn.Module):
    """Frozen weights with a low-rank addition, and buffers that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 2).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 1, bias=False), nn.Linear(1, 2, bias=False)
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.scale: torch.Tensor

    def forward(self, x: Any) -> Any:
        if self.training:
            self.scale.mul_(0.9)
        return self.base(x) + self.up(self.down(x)) * self.scale


class Count:
    """Pipe with a state."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, output: Any) -> Any:
        self.count += 1
        return output

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Inner:
    """Handler of an evaluation, which evaluates something else and feeds it back."""

    def __init__(self) -> None:
        self.pipe = Count()

    def call(self, engine: Engine) -> None:
        found, _ = evaluate(engine.process, loader(6), split="inner", pipes=[self.pipe])
        for group in engine.process.backward.optimizers[""].param_groups:
            group["lr"] *= 1 - 0.01 * min(1.0, found["inner/loss"]) - 0.001 * self.pipe.count


def plain(**given: Any) -> Engine:
    return Engine(supervised(hard_net()), loader(24, shuffle=True), **given)


def scheduled(scheduler: Callable[[Any], Any], **options: Any) -> Callable[..., Engine]:
    def make(**given: Any) -> Engine:
        model = net()
        optimizer = sgd(model)
        schedule = TorchSchedule(scheduler(optimizer), **options)
        step = OptimizerStep(optimizer, schedule=schedule, clip_norm=1.0)
        return Engine(Supervised(model, nn.MSELoss(), backward=step), loader(24), **given)

    return make


def evaluating(engine: Engine, *handlers: Any, every: str = "1 epoch") -> Engine:
    engine.bus.extend([Evaluate({"valid": loader(8)}, every=every, pipes=[Count()]), *handlers])
    return engine


def stopping(**given: Any) -> Engine:
    return evaluating(plain(**given), EarlyStop("valid/loss", "max", patience=2), every="2 steps")


def evaluation_within(**given: Any) -> Engine:
    engine, inner = evaluating(plain(**given), every="2 steps"), Inner()
    engine.on("eval_end")(inner.call)
    return engine


PROGRAMS: dict[str, Callable[..., Engine]] = {
    "plain": plain,
    "game": lambda **given: Engine(Game(), loader(24), **given),
    "game with a period": lambda **given: Engine(Game({"gen": 2}), loader(24), **given),
    "older trainer": lambda **given: Engine(Older(), loader(24), **given),
    "distillation": lambda **given: Engine(Taught(), loader(24, shuffle=True), **given),
    "carried": lambda **given: Engine(Carried(), loader(24, shuffle=True), **given),
    "adapter": lambda **given: Engine(supervised(Adapter()), loader(24), **given),
    "plateau": lambda **given: evaluating(
        scheduled(lambda own: rates.ReduceLROnPlateau(own, patience=0, threshold=0.9))(**given),
        every="2 steps",
    ),
    "one cycle": scheduled(lambda own: rates.OneCycleLR(own, 0.1, total_steps=STEPS)),
    "multiplied": scheduled(lambda own: rates.MultiplicativeLR(own, lambda step: 0.9)),
    "by the epoch": scheduled(lambda own: rates.StepLR(own, 1, 0.5), unit="epoch"),
    "early stop": stopping,
    "average": lambda **given: evaluating(plain(**given), EMA(0.5, warmup=True), every="2 steps"),
    "set value": lambda **given: evaluating(plain(**given), SetValue(4, "optimizer.lr", 0.01)),
    "evaluation within": evaluation_within,
    "accumulated": lambda **given: Engine(
        supervised(hard_net()), Loader(points(24), batch_size=8, micro_batch_size=2), **given
    ),
    "warm-up": lambda **given: Engine(
        Supervised(
            (model := net()),
            nn.MSELoss(),
            backward=OptimizerStep(sgd(model), schedule=WarmupCosine(warmup_steps=3)),
        ),
        loader(24),
        **given,
    ),
}


def started(name: str, folder: Path, **given: Any) -> tuple[Engine, MemoryRecorder]:
    torch.manual_seed(0)
    recorder = MemoryRecorder()
    engine = PROGRAMS[name](epochs=3, seed=1, recorder=recorder, **given)
    save = Save(Saver(folder, keep=99), every="1 step", best=("valid/loss", "min"))
    if not engine.bus.owners(Evaluate):
        save.best = None
    engine.bus.extend(save.handlers())
    return engine, recorder


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_resumed_from_any_step_has_every_bit_of_the_whole_one(
    name: str, tmp_path: Path
) -> None:
    whole, recorded = started(name, tmp_path / "whole")
    whole.run()
    last = whole.state.step

    for step in range(1, last + 1):
        resumed, again = started(name, tmp_path / "none")
        restore(resumed, load_parts(tmp_path / "whole" / f"step-{step:09d}"))
        resumed.run()

        assert same_bits(capture_state(resumed), capture_state(whole)), step
        assert again.points == [point for point in recorded.points if point[1] > step], step


@pytest.mark.parametrize("name", ["plateau", "early stop", "average", "evaluation within", "plain"])
@pytest.mark.parametrize("cut", [2, 4, 7])
def test_a_run_that_was_cut_short_knows_nothing_of_its_last_evaluation(
    name: str, cut: int, tmp_path: Path
) -> None:
    whole, _ = started(name, tmp_path / "whole")
    whole.run()
    started(name, tmp_path / "cut", max_steps=cut)[0].run()
    resumed, _ = started(name, tmp_path / "cut")
    resumed.resume(Saver(tmp_path / "cut"))
    resumed.run()

    assert same_bits(capture_state(resumed), capture_state(whole))
    assert Saver(tmp_path / "cut").best() == Saver(tmp_path / "whole").best()
