"""Small runs put together of features, by name: each is whole, or stopped and resumed.

A set is one choice from some axes; `FEATURES` lists all as "axis: choice". Where all choices of a
set have a plain form, `train_by_hand` does the same in float64 with torch alone.
`python feature_sets.py FOLDER RANK RANKS` resumes sets on several ranks.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from assay.core.events import Event, Handler
from assay.core.ports import MemoryRecorder
from assay.engine import (
    EMA,
    Balanced,
    ByLength,
    Cycle,
    EarlyStop,
    Engine,
    Evaluate,
    Loader,
    MultiOptimizerStep,
    Noam,
    Norms,
    OptimizerStep,
    Process,
    Ramp,
    ResetOptimizer,
    Save,
    Saver,
    SetRequiresGrad,
    SetValue,
    Subset,
    Supervised,
    TorchSchedule,
    WarmupCosine,
    WarmupLinear,
    Weighted,
    evaluate,
)
from assay.engine.checkpoint.folder import load_parts
from assay.engine.loop.engine_state import capture_state, restore
from assay.engine.parallel import data_parallel

sys.path.insert(0, str(Path(__file__).parents[1]))  # of a rank, which is a process of its own
from engine.toys import same_bits

SIZE, BATCH, EPOCHS = 22, 4, 3
"""Five whole batches and one of two samples an epoch."""
CLASSES, IGNORED = 3, -100


def samples(size: int = SIZE, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (size, 4) and classes (size,)."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 4, generator=draw)
    return inputs, inputs[:, :CLASSES].argmax(1)


class Drawing:
    """Data that draw from the three global generators for each sample."""

    def __init__(self) -> None:
        self.inputs, self.targets = samples()
        self.lengths = [1 + i * 7 % 5 for i in range(SIZE)]
        self.labels = self.targets.tolist()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(4) + random.random() + float(np.random.rand())
        return self.inputs[index] + 0.01 * noise, self.targets[index]


class Stream:
    """Batches in an order of its own, with a state."""

    def __init__(self) -> None:
        self.inputs, self.targets = samples()
        self.at = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self.at < SIZE:
            rows = slice(self.at, self.at + BATCH)
            self.at += BATCH
            yield self.inputs[rows], self.targets[rows]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.at = state["at"]


class Net(nn.Module):
    """Perceptron with what a set wants in it."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, CLASSES)
        self.middle = {"batch norm": nn.BatchNorm1d(6), "dropout": nn.Dropout(0.3)}.get(kind)
        self.kind = kind
        if kind == "parametrized":
            nn.utils.parametrizations.spectral_norm(self.first)
        if kind == "lazy":
            self.first = nn.LazyLinear(6)
        if kind == "carried":
            self.register_buffer("carried", torch.zeros(6))
        if kind in ("late numpy", "late random"):
            self.register_buffer("seen", torch.zeros(()))
        if kind == "generator":
            self.draws = torch.Generator().manual_seed(5)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs.to(self.last.weight.dtype)))
        if self.middle is not None:
            hidden = self.middle(hidden)
        if self.training:
            hidden = self._disturb(hidden)
        return self.last(hidden)

    def _disturb(self, hidden: Tensor) -> Tensor:
        if self.kind == "carried":
            hidden = hidden + 0.1 * self.carried
            self.carried = hidden.detach().mean(0)
        elif self.kind in ("late numpy", "late random"):
            self.seen += 1
            if self.seen > 7:
                drawn = np.random.rand() if self.kind == "late numpy" else random.random()
                hidden = hidden + 0.1 * drawn
        elif self.kind == "generator":
            hidden = hidden + 0.1 * torch.rand(6, generator=self.draws)
        return hidden


class Adapted(nn.Module):
    """Frozen network with a low-rank addition, and a buffer that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Net().requires_grad_(False)
        self.down, self.up = nn.Linear(4, 1, bias=False), nn.Linear(1, CLASSES, bias=False)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.scale.mul_(0.9)
        inputs = inputs.to(self.down.weight.dtype)
        return self.base(inputs) + self.up(self.down(inputs)) * self.scale


class Own(Process):
    """Process whose attributes have states that nobody told the engine of."""

    def __init__(self, model: nn.Module, optimizer_step: Any, criterion: Any) -> None:
        self.model, self.backward, self.criterion = model, optimizer_step, criterion
        self.critic = nn.Linear(4, 1)
        self.helpers = {"critic": torch.optim.Adam(self.critic.parameters(), lr=0.05)}
        self.schedulers = [schedulers.StepLR(self.helpers["critic"], 4, 0.5)]
        self.average = AveragedModel(self.critic)
        self.weight = Ramp(0.0, 0.5, over=9)
        self.state: Any = None

    def attach(self, state: Any, device: Any, logged: Any) -> None:
        super().attach(state, device, logged)
        self.state = state

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        logits = self.model(inputs)
        loss = self.criterion(logits, target)
        if torch.is_grad_enabled():
            optimizer = self.helpers["critic"]
            optimizer.zero_grad()
            self.critic(inputs).square().mean().backward()
            optimizer.step()
            self.schedulers[0].step()
            self.average.update_parameters(self.critic)
            pull = self.average(inputs).mean().detach() * logits.square().mean()
            loss = loss + self.weight(self.state.step) * pull
        return loss, {"pred": logits.detach(), "target": target, "loss": loss.detach()}


class Game(Process):
    """Process with two losses, each of its own optimizer."""

    def __init__(self, model: nn.Module, optimizer_step: Any) -> None:
        self.model, self.backward = model, optimizer_step

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        logits = self.model(inputs)
        losses = {"last": F.cross_entropy(logits, target), "first": logits.square().mean()}
        loss = losses["last"].detach()
        return losses, {"pred": logits.detach(), "target": target, "loss": loss}


class Carried(Process):
    """Process that carries a state from batch to batch, in attributes that its class lists."""

    keeps = ("hidden", "seen")

    def __init__(self, model: nn.Module, optimizer_step: Any, criterion: Any) -> None:
        self.model, self.backward, self.criterion = model, optimizer_step, criterion
        self.hidden: Any = None
        self.seen = 0

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        logits = self.model(inputs)
        if torch.is_grad_enabled():
            self.seen += len(inputs)
            if self.hidden is not None:
                logits = logits + self.hidden / self.seen
            self.hidden = logits.detach().mean(0)
        loss = self.criterion(logits, target)
        return loss, {"pred": logits.detach(), "target": target, "loss": loss.detach()}


class Taught(Process):
    """Distillation from a teacher that follows the model, and from one that never moves."""

    def __init__(self, model: nn.Module, optimizer_step: Any, criterion: Any) -> None:
        self.model, self.backward, self.criterion = model, optimizer_step, criterion
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        self.frozen = Net().requires_grad_(False)

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        logits = self.model(inputs)
        loss = self.criterion(logits, target)
        told = self.teacher(inputs).detach() + self.frozen(inputs)
        pull = (logits - told).square().mean()
        output = {"pred": logits.detach(), "target": target, "loss": loss.detach()}
        return loss + 0.1 * pull, output

    def update(self, step: int) -> bool:
        done = super().update(step)
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), self.model.parameters(), strict=True)
            for own, other in pairs:
                own.lerp_(other, 0.3)
        return done


class Older:
    """Trainer without a base class, which makes its updates with all that it holds."""

    def __init__(self, model: nn.Module, optimizer_step: Any, criterion: Any) -> None:
        self.model, self.criterion = model, criterion
        (self.optimizer,) = optimizer_step.optimizers.values()
        self.critic = nn.Linear(CLASSES, 1)
        self.optim_d = torch.optim.Adam(self.critic.parameters())
        self.schedules = [
            schedulers.StepLR(self.optim_d, 2, 0.5),
            schedulers.ExponentialLR(self.optimizer, 0.9),
        ]
        self.average = {"ema": AveragedModel(self.model)}
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        self.noise = torch.Generator().manual_seed(5)

    def training_step(self, batch: Any) -> dict[str, Any]:
        logits = self.model(batch[0] + torch.rand(1, generator=self.noise))
        loss = self.criterion(logits, batch[1]) + self.critic(logits).square().mean()
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
        logits = self.model(batch[0])
        loss = self.criterion(logits, batch[1])
        return loss, {"pred": logits.detach(), "target": batch[1], "loss": loss.detach()}


class Counter:
    """Listener with a state, which changes what is trained on."""

    def __init__(self) -> None:
        self.count = 0

    def handlers(self) -> list[Handler]:
        return [Handler(event=Event.STEP_BEGIN, fn=self.decay)]

    def decay(self, engine: Engine) -> None:
        self.count += 1
        with torch.no_grad():
            for parameter in engine.process.model.parameters():
                parameter.mul_(1 - 0.001 * self.count)

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.count = state["count"]


class Wave:
    """Listener that sets the weight decay by a cycle of the step."""

    def __init__(self) -> None:
        self.value = Cycle(0.0, 0.1, period=5)

    def handlers(self) -> list[Handler]:
        return [Handler(event=Event.STEP_BEGIN, fn=self.apply)]

    def apply(self, engine: Engine) -> None:
        for optimizer in engine.process.backward.optimizers.values():
            for group in optimizer.param_groups:
                group["weight_decay"] = self.value(engine.state.step)


class DrawingListener:
    """Listener that draws from the global generators between two steps."""

    def handlers(self) -> list[Handler]:
        return [Handler(event=each, fn=self.draw) for each in (Event.STEP_BEGIN, Event.EPOCH_END)]

    def draw(self, engine: Engine) -> None:
        drawn = random.random() + float(np.random.rand()) + torch.rand(1).item()
        for group in engine.process.backward.optimizers[""].param_groups:
            group["weight_decay"] = 0.01 * drawn + 0.5 * group["weight_decay"]


class InnerEvaluation:
    """Listener that evaluates by itself, within the training, and trains on what comes of it."""

    def __init__(self) -> None:
        self.pipe = CountingPipe()

    def handlers(self) -> list[Handler]:
        return [Handler(event=Event.EPOCH_END, fn=self.run)]

    def run(self, engine: Engine) -> None:
        batches = Loader(TensorDataset(*samples(9, seed=2)), batch_size=4, split="inner")
        found, _ = evaluate(engine.process, batches, split="inner", pipes=[self.pipe])
        self.pipe.total += found["inner/loss"]
        for group in engine.process.backward.optimizers[""].param_groups:
            group["weight_decay"] = 0.001 * self.pipe.total


class CountingPipe:
    """Pipe of an evaluation, with a state."""

    total = 0.0

    def __call__(self, output: Any) -> Any:
        self.total += 1
        return output

    def state_dict(self) -> dict[str, float]:
        return {"total": self.total}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.total = state["total"]


@dataclass
class Recipe:
    """Parts of a run, each a function, so that a resumed run makes them anew."""

    model: Callable[[], nn.Module] = Net
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda of: torch.optim.SGD(of, lr=0.1)
    schedule: Callable[[torch.optim.Optimizer], Any] = lambda optimizer: None
    plain_schedule: Callable[[torch.optim.Optimizer], Any] | None = lambda optimizer: None
    data: Callable[[], Any] = lambda: TensorDataset(*samples())
    loading: dict[str, Any] = field(default_factory=lambda: {"shuffle": True})
    criterion: Callable[[], Any] = nn.CrossEntropyLoss
    process: Callable[[nn.Module, Any, Any], Any] | None = None
    step: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    listeners: list[Callable[[], Any]] = field(default_factory=list)
    accumulate: int = 1
    is_plain: bool = True
    dtype: torch.dtype = torch.float32
    epochs: int = EPOCHS

    def make(
        self, folder: Path, recorder: MemoryRecorder, *, saving: str = "3 steps", **more: Any
    ) -> tuple[Engine, Saver]:
        """Make the engine and its saver, both as new."""
        torch.manual_seed(0)
        model = self.model().to(self.dtype)
        criterion = self.criterion()
        if isinstance(criterion, nn.Module):
            criterion.to(self.dtype)
        if self.process is Game:
            parts = {
                name: OptimizerStep(optimizer, schedule=self.schedule(optimizer), **self.step)
                for name in ("first", "last")
                for optimizer in [self.optimizer(getattr(model, name).parameters())]
            }
            process: Any = Game(model, MultiOptimizerStep(parts, every={"first": 2}))
        else:
            with torch.no_grad():
                model(samples()[0])  # what is lazy has its parameters now
            optimizer = self.optimizer(model.parameters())
            step = OptimizerStep(optimizer, schedule=self.schedule(optimizer), **self.step)
            make = self.process or (
                lambda model, step, criterion: Supervised(model, criterion, backward=step)
            )
            process = make(model, step, criterion)
        data = self.data()
        train = data
        if hasattr(data, "__getitem__"):
            sizes = {"batch_size": BATCH * self.accumulate, "accumulate": self.accumulate}
            train = Loader(data, **sizes | self.loading | _share())
        saver = Saver(folder, keep=99 if saving == "1 step" else 3)
        engine = Engine(
            process, train, epochs=self.epochs, seed=0, recorder=recorder, **self.engine, **more
        )
        if dist.is_initialized():
            data_parallel(engine, _mesh())
        for listener in self.listeners:
            engine.bus.extend(listener().handlers())
        save = Save(saver, every=saving, best=("valid/loss", "min"), background=False)
        engine.bus.extend(save.handlers())
        return engine, saver


@cache
def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))


def _share() -> dict[str, int]:
    """Return what a loader is told of the other ranks."""
    if not dist.is_initialized():
        return {}
    return {"rank": dist.get_rank(), "ranks": dist.get_world_size()}


Change = Callable[[Recipe], None]
AXES: dict[str, dict[str, Change]] = {}


def _axis(name: str, **choices: Change) -> None:
    AXES[name] = {choice.replace("_", " "): change for choice, change in choices.items()}


def _set(**values: Any) -> Change:
    def change(recipe: Recipe) -> None:
        for name, value in values.items():
            before = getattr(recipe, name)
            setattr(recipe, name, {**before, **value} if isinstance(before, dict) else value)

    return change


def _listen(make: Callable[[], Any]) -> Change:
    def change(recipe: Recipe) -> None:
        recipe.listeners.append(make)
        recipe.is_plain = False

    return change


def _net(kind: str, *, is_plain: bool = False) -> Change:
    return _set(model=lambda: Net(kind), **({} if is_plain else {"is_plain": False}))


def _by(kind: type[torch.optim.Optimizer], **settings: Any) -> Change:
    return _set(optimizer=lambda of: kind(of, **settings))


def _two_groups(of: Any) -> torch.optim.Optimizer:
    first, *rest = of
    return torch.optim.SGD(
        [{"params": [first], "lr": 0.01}, {"params": rest}], lr=0.1, momentum=0.5
    )


def _torch_schedule(make: Callable[[torch.optim.Optimizer], Any]) -> Change:
    return _set(schedule=lambda optimizer: TorchSchedule(make(optimizer)), plain_schedule=make)


def _own_schedule(make: Callable[[], Any]) -> Change:
    return _set(schedule=lambda optimizer: make(), plain_schedule=None, is_plain=False)


class DecayMore(schedulers.LRScheduler):
    """Scheduler of another setting than the rate."""

    def get_lr(self) -> list[float]:
        if self.last_epoch > 0:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 0.9 * group["weight_decay"] + 0.001
        return self.base_lrs


def _plateau(optimizer: torch.optim.Optimizer) -> TorchSchedule:
    follower = schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5, factor=0.5)
    return TorchSchedule(follower, metric="valid/loss")


def _step_by_epochs(optimizer: torch.optim.Optimizer) -> TorchSchedule:
    return TorchSchedule(schedulers.StepLR(optimizer, 1, 0.5), unit="epoch")


def _sequence(optimizer: torch.optim.Optimizer) -> schedulers.LRScheduler:
    first = schedulers.LinearLR(optimizer, total_iters=4)
    second = schedulers.CosineAnnealingLR(optimizer, T_max=9)
    return schedulers.SequentialLR(optimizer, [first, second], milestones=[5])


class SumAndWeight:
    """Criterion that says its own weight."""

    def __call__(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        weights = 1.0 + target.to(logits.dtype)
        return (F.cross_entropy(logits, target, reduction="none") * weights).sum(), weights.sum()


def _ignore(count: int) -> Change:
    """Ignore the first labels: in the order of the data, whole windows where count is large."""

    def data() -> TensorDataset:
        inputs, targets = samples()
        targets = targets.clone()
        targets[:count] = IGNORED
        return TensorDataset(inputs, targets)

    def change(recipe: Recipe) -> None:
        recipe.data = data
        recipe.loading = {"shuffle": False} if count > BATCH else recipe.loading
        recipe.step = {**recipe.step, "non_finite": "skip"}

    return change


def _evaluation(every: str, *splits: str) -> Change:
    def make() -> Evaluate:
        data = {
            split: Loader(TensorDataset(*samples(10, seed=1 + n)), batch_size=4)
            for n, split in enumerate(splits)
        }
        return Evaluate(data, every=every, pipes=[CountingPipe()])

    def change(recipe: Recipe) -> None:
        recipe.listeners.append(make)

    return change


_axis(
    "model",
    batch_norm=_net("batch norm", is_plain=True),
    dropout=_net("dropout"),
    parametrized=_net("parametrized"),
    lazy=_net("lazy"),
    carried_state=_net("carried"),
    late_numpy=_net("late numpy"),
    late_random=_net("late random"),
    own_generator=_net("generator"),
    adapter=_set(model=Adapted, is_plain=False),
)
_axis(
    "optimizer",
    momentum=_by(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    Adam=_by(torch.optim.Adam, lr=0.01),
    AMSGrad=_by(torch.optim.AdamW, lr=0.01, amsgrad=True),
    RMSprop=_by(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    Adagrad=_by(torch.optim.Adagrad, lr=0.05),
    Adadelta=_by(torch.optim.Adadelta),
    Adamax=_by(torch.optim.Adamax, lr=0.01),
    NAdam=_by(torch.optim.NAdam, lr=0.01),
    RAdam=_by(torch.optim.RAdam, lr=0.01),
    ASGD=_by(torch.optim.ASGD, lr=0.05),
    Rprop=_by(torch.optim.Rprop, lr=0.01),
    two_groups=_set(optimizer=_two_groups),
)
_axis(
    "schedule",
    warmup_cosine=_own_schedule(lambda: WarmupCosine(warmup_steps=3)),
    by_epochs=_own_schedule(lambda: WarmupLinear(warmup_epochs=1, unit="epoch")),
    noam=_own_schedule(lambda: Noam(16, warmup_steps=4)),
    step=_torch_schedule(lambda optimizer: schedulers.StepLR(optimizer, 4, 0.5)),
    step_by_epochs=_set(schedule=_step_by_epochs, is_plain=False),
    one_cycle=_torch_schedule(
        lambda optimizer: schedulers.OneCycleLR(
            optimizer, 0.2, total_steps=20, cycle_momentum=False
        )
    ),
    restarts=_torch_schedule(
        lambda optimizer: schedulers.CosineAnnealingWarmRestarts(optimizer, 4)
    ),
    cyclic=_torch_schedule(
        lambda optimizer: schedulers.CyclicLR(optimizer, 0.01, 0.1, 3, cycle_momentum=False)
    ),
    multiplied=_torch_schedule(
        lambda optimizer: schedulers.MultiplicativeLR(optimizer, lambda step: 0.9)
    ),
    sequence=_torch_schedule(_sequence),
    other_setting=_torch_schedule(DecayMore),
    plateau=_set(schedule=_plateau, is_plain=False),
)
_axis(
    "data",
    drawing=_set(data=Drawing),
    weighted=_set(
        loading={"shuffle": None, "sampler": Weighted([1.0 + i % 3 for i in range(SIZE)])}
    ),
    balanced=_set(data=Drawing, loading={"shuffle": None, "sampler": Balanced()}),
    by_length=_set(data=Drawing, loading={"shuffle": None, "sampler": ByLength(window=2)}),
    part=_set(loading={"shuffle": None, "sampler": Subset(range(0, SIZE, 2))}),
    stream=_set(data=Stream),
    drop_last=_set(loading={"drop_last": True}),
)
_axis("window", accumulate_2=_set(accumulate=2), accumulate_3=_set(accumulate=3))
_axis(
    "loss",
    sum_and_weight=_set(criterion=SumAndWeight),
    class_weights=_set(criterion=lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5]))),
    some_ignored=_ignore(3),
    windows_ignored=_ignore(2 * BATCH + 1),
)
_axis(
    "update",
    clip=_set(step={"clip_norm": 0.3}),
    skip=_set(step={"non_finite": "skip"}),
    ignore=_set(step={"non_finite": "ignore"}),
    deferred=_set(engine={"deferred": True}),
)
_axis(
    "process",
    attributes=_set(process=Own, is_plain=False),
    two_optimizers=_set(process=Game, is_plain=False),
    carried=_set(process=Carried, is_plain=False),
    taught=_set(process=Taught, is_plain=False),
    older=_set(process=Older, is_plain=False),
)
_axis(
    "evaluation",
    every_epoch=_evaluation("1 epoch", "valid"),
    every_four_steps=_evaluation("4 steps", "valid"),
    two_splits=_evaluation("1 epoch", "valid", "test"),
)
_axis(
    "listener",
    EMA=_listen(lambda: EMA(0.9)),
    EMA_every_2=_listen(lambda: EMA(0.9, every=2, evaluate=False, warmup=True)),
    early_stop=_listen(lambda: EarlyStop("valid/loss", "max", patience=2)),
    set_rate=_listen(lambda: SetValue(5, "optimizer.weight_decay", 0.1)),
    set_clip=_listen(lambda: SetValue(7, "backward.clip_norm", 0.2)),
    freeze=_listen(lambda: SetRequiresGrad(6, "first.bias")),
    reset=_listen(lambda: ResetOptimizer(8)),
    norms=_listen(Norms),
    counter=_listen(Counter),
    inner_evaluation=_listen(InnerEvaluation),
    draws=_listen(DrawingListener),
)
_axis(
    "ramp",
    cycle=_listen(Wave),
)


ENDS = ("max_steps", "stop", "error in step_end", "error in eval_end")
FEATURES = [f"{axis}: {choice}" for axis, choices in AXES.items() for choice in choices]
CLASHES = [
    {"schedule: plateau", "no evaluation"},
    {"listener: early stop", "no evaluation"},
    {"process: two optimizers", "loss"},
    {"process: two optimizers", "schedule: plateau"},
    {"process: two optimizers", "schedule: sequence"},
    {"process: two optimizers", "listener: set clip"},
    {"process: two optimizers", "listener: inner evaluation"},
    {"process: two optimizers", "listener: freeze"},
    {"process: two optimizers", "model: lazy"},
    {"process: two optimizers", "optimizer: two groups"},
    {"process: attributes", "loss"},
    {"process: attributes", "window"},
    {"process: carried", "loss"},
    {"process: taught", "loss"},
    {"process: older", "loss"},
    {"process: older", "window"},
    {"process: attributes", "update: deferred"},
    {"data", "loss: some ignored"},
    {"data", "loss: windows ignored"},
    {"data: stream", "window"},
    {"schedule: other setting", "listener: set rate"},
    {"schedule: other setting", "ramp"},
    {"listener: set rate", "ramp"},
    {"listener: inner evaluation", "ramp"},
    {"listener: draws", "ramp"},
    {"listener: draws", "optimizer: Rprop"},
    {"schedule: other setting", "listener: draws"},
    {"process: two optimizers", "listener: draws"},
    {"schedule: other setting", "optimizer: Rprop"},
    {"ramp", "optimizer: Rprop"},
    {"listener: set rate", "optimizer: Rprop"},
    {"listener: inner evaluation", "optimizer: Rprop"},
    {"model: lazy", "listener: freeze"},
    {"update: skip", "loss"},
    {"update: ignore", "loss: some ignored"},
    {"update: ignore", "loss: windows ignored"},
    {"update: deferred", "optimizer"},
]
"""What does not go together: without a meaning, or refused by name."""


def fits(names: frozenset[str]) -> bool:
    """Return True for a set that has a meaning."""
    known = names | {name.partition(":")[0] for name in names}
    if not any(name.startswith("evaluation") for name in names):
        known |= {"no evaluation"}
    return not any(clash <= known for clash in CLASHES)


def draw_sets(
    count: int, *, sizes: tuple[int, ...] = (2, 3), seed: int = 0
) -> list[frozenset[str]]:
    """Return so many sets that fit, each of one choice from some axes; no set twice."""
    draw, sets = random.Random(seed), dict[frozenset[str], None]()
    while len(sets) < count:
        axes = draw.sample(sorted(AXES), draw.choice(sizes))
        names = frozenset(f"{axis}: {draw.choice(sorted(AXES[axis]))}" for axis in axes)
        if fits(names):
            sets[names] = None
    return list(sets)


def recipe_of(names: frozenset[str]) -> Recipe:
    """Return the recipe of a set."""
    recipe = Recipe()
    for name in sorted(names, key=FEATURES.index):
        axis, _, choice = name.partition(": ")
        AXES[axis][choice](recipe)
    return recipe


def resume_everywhere(recipe: Recipe, folder: Path) -> list[str]:
    """Train whole, and again from the checkpoint of each of its steps; return what differs."""
    recorder = MemoryRecorder()
    engine, saver = recipe.make(folder / "whole", recorder, saving="1 step")
    engine.run()
    state, found = capture_state(engine), list[str]()
    for checkpoint in saver.complete()[0]:
        step, again = checkpoint.step, MemoryRecorder()
        resumed, _ = recipe.make(folder / "resumed", again, saving="never")
        restore(resumed, load_parts(folder / "whole" / checkpoint.name))
        resumed.run()
        parts = capture_state(resumed)
        names = [name for name in state if not same_bits(state[name], parts.get(name))]
        found += [f"from step {step}: {name}" for name in names]
        later = [point for point in recorder.points if point[1] > step]
        if repr(sorted(later)) != repr(sorted(again.points)):
            odd = {*map(repr, later)} ^ {*map(repr, again.points)}
            found.append(f"from step {step}: {sorted(odd)[:4]}")
    return found if engine.state.step >= 4 else [*found, "too few steps"]


class _Broken(Exception):
    """Error of a handler."""


def train(recipe: Recipe, folder: Path, *, at: int = 0, how: str = "") -> tuple[Engine, Any]:
    """Train whole, or to step `at`, where the run ends as `how` says, and then resume.

    Return the engine and what was recorded: (name, step, value) of each point.
    """
    recorder = MemoryRecorder()
    if at:
        engine, _ = recipe.make(
            folder, recorder, **({"max_steps": at} if how == "max_steps" else {})
        )

        def end(engine: Engine) -> None:
            if engine.state.step >= at:
                if how == "stop":
                    engine.stop("asked", interrupts=True)
                elif how.startswith("error"):
                    raise _Broken

        if how != "max_steps":
            event = Event.EVAL_END if how == "error in eval_end" else Event.STEP_END
            engine.bus.add(Handler(event=event, fn=end, priority=-200))
        with contextlib.suppress(_Broken):
            engine.run()
    engine, saver = recipe.make(folder, recorder)
    engine.resume(saver)
    engine.run()
    kept = ("train/loss", "train/lr", "train/grad_norm", "valid/", "test/")
    points = [point for point in recorder.points if point[0].startswith(kept)]
    return engine, sorted(points, key=lambda point: (point[1], point[0]))


def train_by_hand(recipe: Recipe) -> dict[str, Tensor] | None:
    """Return the weights after the same training in plain torch, in float64; None without a form.

    The batches come from the loader of the recipe: which samples, in which windows.
    """
    if not recipe.is_plain:
        return None
    data = recipe.data()
    if not hasattr(data, "__getitem__") or isinstance(data, Drawing):
        return None
    sizes = {"batch_size": BATCH * recipe.accumulate, "accumulate": recipe.accumulate}
    loader = Loader(data, seed=0, **sizes | recipe.loading)
    torch.manual_seed(0)
    model = recipe.model().double()
    with torch.no_grad():
        model(samples()[0])  # what is lazy has its parameters now
    optimizer = recipe.optimizer(model.parameters())
    scheduler = recipe.plain_schedule(optimizer) if recipe.plain_schedule else None
    criterion: Any = recipe.criterion()
    weights = getattr(criterion, "weight", None)
    is_own = isinstance(criterion, SumAndWeight)
    for epoch in range(EPOCHS):
        for batches, *_ in loader.windows(epoch, 0):
            total, count = torch.zeros((), dtype=torch.float64), 0.0
            for inputs, target in batches:
                logits = model(inputs)
                if is_own:
                    loss, weight = criterion(logits, target)
                else:
                    known = weights.double() if weights is not None else None
                    loss = F.cross_entropy(logits, target, weight=known, reduction="sum")
                    of = target[target != IGNORED]
                    weight = known[of].sum() if known is not None else torch.tensor(float(len(of)))
                total, count = total + loss, count + float(weight)
            if count:  # else no sample of it counts, and only the schedule moves on
                optimizer.zero_grad()
                (total / count).backward()
                if (norm := recipe.step.get("clip_norm")) is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), norm)
                optimizer.step()
            if scheduler is not None:
                with warnings.catch_warnings():  # of a step whose update was left out
                    warnings.simplefilter("ignore")
                    scheduler.step()
    return dict(model.state_dict())


def main(folder: str, rank: str, ranks: str, *sets: str) -> None:
    """Resume each set everywhere on this rank; leave what differs in FOLDER/RANK.json."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(ranks))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(ranks))
    found = {}
    for number, names in enumerate(sets):
        recipe = recipe_of(frozenset(filter(None, names.split(" + "))))
        recipe.epochs = 2
        found[names] = resume_everywhere(recipe, Path(folder, f"{number}-{rank}"))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
