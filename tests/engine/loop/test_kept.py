"""All that can be reached is in a checkpoint: a table of stateful objects, and of their places."""

from __future__ import annotations

import random
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler as rates
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from assay.core.errors import CheckpointError, InputError
from assay.core.events import Event, Handler
from assay.engine import Engine, Evaluate, Loader, OptimizerStep, Process, Save, Saver, evaluate
from assay.engine.checkpoint.codec import digest_state
from assay.engine.loop.engine_state import own_parts

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(5))
DATA = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))


class Own(Process):
    """Process with objects of the user somewhere, which each step uses."""

    used: ClassVar[MutableMapping[Any, list[tuple[Callable[[Any], object], Any]]]] = (
        WeakKeyDictionary()
    )
    """By process, so that the walk does not find them here."""

    def __init__(self) -> None:
        self.model: Any = nn.Linear(3, 1)
        self.backward = OptimizerStep(torch.optim.SGD(self.model.parameters(), lr=0.01))

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        x, y = batch
        return nn.functional.mse_loss(self.model(x), y), {}

    def update(self, step: int) -> bool:
        done = super().update(step)
        for use, thing in self.used.get(self, ()):
            use(thing)
        return done


def engine_of(
    process: Any, folder: Path, every: str = "5 steps", **options: Any
) -> tuple[Engine, Saver]:
    saver = Saver(folder)
    engine = Engine(process, Loader(DATA, batch_size=4, seed=1), epochs=2, **options)
    engine.bus.extend(Save(saver, every=every, background=False).handlers())
    return engine, saver


def resumed_parts(make: Callable[[], Any], folder: Path) -> tuple[Any, Any]:
    """Return the parts of a whole run, and of one that was stopped at step 5 and resumed."""
    whole, _ = engine_of(make(), folder / "whole")
    whole.run()
    first, _ = engine_of(make(), folder / "cut", max_steps=5)
    first.run()
    second, saver = engine_of(make(), folder / "cut")
    second.resume(saver)
    second.run()
    return own_parts(whole), own_parts(second)


# ------------------------------------------------------------------------------ objects of torch


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0, momentum=0.5)


def scheduler(kind: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: kind(optimizer(), *args, **kwargs)


def _settings(kind: Any) -> dict[str, float]:
    return {"momentum": 0.9} if kind is torch.optim.SGD else {}


def step_optimizer(thing: Any) -> None:
    for group in thing.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, 0.1)
    thing.step()


def step_scheduler(thing: Any) -> None:
    step_optimizer(thing.optimizer)
    thing.step(1.0) if isinstance(thing, rates.ReduceLROnPlateau) else thing.step()


def scaler() -> Any:
    return torch.amp.GradScaler("cpu", growth_interval=2)


def step_scaler(thing: Any) -> None:
    own = optimizer()
    thing.scale(own.param_groups[0]["params"][0].sum()).backward()
    thing.step(own)
    thing.update()


@torch.no_grad()
def grow(thing: Any) -> None:
    for parameter in thing.parameters():
        parameter.add_(1.0)


def train_norm(thing: Any) -> None:
    thing(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)) + 1)


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.seen: torch.Tensor


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LazyLinear(2)
        self.inner(torch.ones(1, 3))


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, output: Any = None) -> Any:
        self.count += 1
        return output

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Decay:
    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, step: int) -> float:
        self.asked += 1
        return float(0.9**step)


def average(**options: Any) -> Any:
    return AveragedModel(nn.Linear(2, 2), **options)


def step_average(thing: Any) -> None:
    live = nn.Linear(2, 2)
    nn.init.constant_(live.weight, float(thing.n_averaged))
    nn.init.constant_(live.bias, 1.0)
    thing.update_parameters(live)


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    **{
        kind.__name__: (
            lambda kind=kind: kind([nn.Parameter(torch.ones(2, 2))], lr=0.1, **_settings(kind)),
            step_optimizer,
        )
        for kind in (
            *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam),
            *(torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta),
            *(torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adafactor),
        )
    },
    "StepLR": (scheduler(rates.StepLR, 2, 0.5), step_scheduler),
    "MultiStepLR": (scheduler(rates.MultiStepLR, [2, 6], 0.5), step_scheduler),
    "ExponentialLR": (scheduler(rates.ExponentialLR, 0.9), step_scheduler),
    "CosineAnnealingLR": (scheduler(rates.CosineAnnealingLR, 12), step_scheduler),
    "Restarts": (scheduler(rates.CosineAnnealingWarmRestarts, 5), step_scheduler),
    "CyclicLR": (scheduler(rates.CyclicLR, 0.1, 1.0, step_size_up=4), step_scheduler),
    "OneCycleLR": (scheduler(rates.OneCycleLR, 1.0, total_steps=20), step_scheduler),
    "LambdaLR": (scheduler(rates.LambdaLR, lambda step: 0.5**step), step_scheduler),
    "MultiplicativeLR": (scheduler(rates.MultiplicativeLR, lambda step: 0.9), step_scheduler),
    "LambdaLR of an object": (scheduler(rates.LambdaLR, Decay()), step_scheduler),
    "ConstantLR": (scheduler(rates.ConstantLR, 0.3, 4), step_scheduler),
    "LinearLR": (scheduler(rates.LinearLR, 0.3, total_iters=8), step_scheduler),
    "PolynomialLR": (scheduler(rates.PolynomialLR, 20), step_scheduler),
    "ReduceLROnPlateau": (scheduler(rates.ReduceLROnPlateau, patience=1), step_scheduler),
    "SWALR": (scheduler(SWALR, 0.01, anneal_epochs=9), step_scheduler),
    "SequentialLR": (
        lambda: (
            lambda own: rates.SequentialLR(
                own, [rates.ConstantLR(own, 0.1, 3), rates.ExponentialLR(own, 0.9)], [3]
            )
        )(optimizer()),
        step_scheduler,
    ),
    "ChainedScheduler": (
        lambda: (
            lambda own: rates.ChainedScheduler(
                [rates.ConstantLR(own, 0.1, 3), rates.ExponentialLR(own, 0.9)], own
            )
        )(optimizer()),
        step_scheduler,
    ),
    "GradScaler": (scaler, step_scaler),
    "AveragedModel": (average, step_average),
    "AveragedModel, exponential": (
        lambda: average(multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True),
        step_average,
    ),
    "torch.Generator": (
        lambda: torch.Generator().manual_seed(3),
        lambda own: torch.rand(1, generator=own),
    ),
    "random.Random": (lambda: random.Random(3), lambda own: own.random()),
    "numpy Generator": (lambda: np.random.default_rng(3), lambda own: own.random()),
    "RandomState": (lambda: np.random.RandomState(3), lambda own: own.rand()),
    "bit generator": (lambda: np.random.PCG64(3), lambda own: own.random_raw()),
    "method of a generator": (lambda: random.Random(3).random, lambda own: own()),
    "module": (lambda: nn.Linear(2, 2), grow),
    "running statistics": (lambda: nn.BatchNorm1d(2), train_norm),
    "passing buffer": (Passing, lambda own: own.seen.add_(1)),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(2, 2)), grow),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(2, 2)), grow),
    "lazily made": (Lazy, grow),
    "the user's own": (Counter, lambda own: own()),
}


class Holder:
    """Plain object of the user."""

    def __init__(self, **things: Any) -> None:
        vars(self).update(things)


def put_in_module(process: Any, things: dict[str, Any]) -> None:
    process.model.things = Holder(**{name: [thing] for name, thing in things.items()})


def put_twice(process: Any, things: dict[str, Any]) -> None:
    process.first = dict(things)
    process.second = list(things.values())


def optimizer_of(process: Any) -> torch.optim.Optimizer:
    return next(iter(process.backward.optimizers.values()))


PLACES: dict[str, Callable[[Any, dict[str, Any]], object]] = {
    "attribute": lambda process, things: vars(process).update(things),
    "list": lambda process, things: setattr(process, "things", [None, *things.values()]),
    "dict": lambda process, things: setattr(process, "things", {1: {"a": (things,)}}),
    "module": put_in_module,
    "object": lambda process, things: setattr(process, "holder", Holder(**things)),
    "closure": lambda process, things: setattr(process, "hook", lambda: things),
    "shared": put_twice,
    "hook of a module": lambda process, things: process.model.register_forward_hook(
        lambda *given: things.clear() if not given else None
    ),
    "hook of an optimizer": lambda process, things: optimizer_of(process).register_step_post_hook(
        lambda *given: things.clear() if not given else None
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_object_with_a_state_is_kept_wherever_it_is(place: str, tmp_path: Path) -> None:
    def make_process() -> Any:
        torch.manual_seed(0)
        own = Own()
        things = {name: make() for name, (make, _) in PAIRS.items()}
        PLACES[place](own, things)
        Own.used[own] = [(use, things[name]) for name, (_, use) in PAIRS.items()]
        return own

    whole, resumed = resumed_parts(make_process, tmp_path)
    fresh = own_parts(engine_of(make_process(), tmp_path)[0])
    for path, state in whole["process"].items():
        assert digest_state(resumed["process"][path]) == digest_state(state), path
        is_used = digest_state(fresh["process"][path]) != digest_state(state)
        assert is_used or path.endswith("buffers"), path
    assert len(whole["process"]) > len(PAIRS)
    assert digest_state(whole) == digest_state(resumed)
    if place == "shared":
        assert not any(path.startswith("second") for path in whole["process"])


class Teacher(Own):
    """Distillation from a network of which nothing is trained."""

    def __init__(self, width: int = 600) -> None:
        super().__init__()
        self.teacher = nn.Linear(3, width).requires_grad_(False)
        self.twin = nn.Linear(width, width).requires_grad_(False)
        self.temperature = nn.Parameter(torch.ones(1))
        self.optimizer_of_it = torch.optim.Adam([self.temperature], lr=0.1)

    def update(self, step: int) -> bool:
        self.optimizer_of_it.zero_grad()
        self.temperature.square().sum().backward()
        self.optimizer_of_it.step()
        return super().update(step)


def test_a_network_that_is_not_trained_is_on_disk_once(tmp_path: Path) -> None:
    engine, _ = engine_of(Teacher(), tmp_path, every="3 steps")
    engine.run()
    files = sorted(tmp_path.glob("step-*/frozen.safetensors"))
    assert len(files) > 2
    assert files[0].stat().st_size > 1_000_000
    assert len({file.stat().st_ino for file in files}) == 1


def test_a_teacher_and_a_parameter_outside_of_modules_are_restored(tmp_path: Path) -> None:
    teachers = iter(range(3))

    def make() -> Any:
        torch.manual_seed(0)
        process = Teacher(2)
        nn.init.constant_(process.teacher.weight, next(teachers))
        return process

    whole, resumed = resumed_parts(make, tmp_path)
    assert resumed["frozen"]["teacher"]["weight"][0, 0] == 1  # of the run that was cut
    assert digest_state(whole["process"]) == digest_state(resumed["process"])
    assert "temperature" in whole["process"]


class Wrapped(Own):
    """Networks that share parts with the model, with each other, and with lists."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1)
        self.whole = nn.Sequential(self.model, self.head, nn.Linear(1, 2))
        self.whole.register_parameter("scale", nn.Parameter(torch.ones(2)))
        self.replicas = nn.DataParallel(self.model)
        Own.used[self] = [(grow, self.head), (grow, self.whole)]


def test_what_the_model_holds_is_kept_once(tmp_path: Path) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        return Wrapped()

    whole, resumed = resumed_parts(make, tmp_path)
    assert digest_state(whole) == digest_state(resumed)
    assert {path: [*state] for path, state in whole["process"].items()} == {
        "head": ["weight", "bias"],
        "whole": ["scale"],
        "whole.2": ["weight", "bias"],
    }


class Declares(Own):
    keeps = ("seen", "carried")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.carried: Any = None

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        x, y = batch
        self.seen.append(len(x))
        kept = 0 if self.carried is None else self.carried
        self.carried = (self.model(x).mean() + 0.5 * kept).detach()
        return nn.functional.mse_loss(self.model(x) + kept, y), {}


def test_attributes_that_a_class_lists_are_kept(tmp_path: Path) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        return Declares()

    whole, resumed = resumed_parts(make, tmp_path)
    assert digest_state(whole) == digest_state(resumed)
    assert len(whole["process"]["seen"]["value"]) == 12


class Raises:
    def state_dict(self) -> dict[str, Any]:
        raise OSError("the disk is away")

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Odd(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"count": object()}


class Key:
    """Key of a dict without a text of its own."""


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Raises(), ["process.things", "OSError: the disk is away"]),
        ([Odd()], ["process.things[0].count", "builtins.object"]),
        ({Key(): Counter(), Key(): Counter()}, ["things[...]", "Two objects"]),
        (Holder(inner={"a": Raises()}), ["process.things.inner['a']"]),
    ],
)
def test_a_state_that_cannot_be_kept_is_refused_before_the_first_step(
    thing: Any, words: list[str], tmp_path: Path
) -> None:
    process: Any = Own()
    process.things = thing
    engine, _ = engine_of(process, tmp_path)
    with pytest.raises(CheckpointError) as raised:
        engine.run()
    assert engine.state.step == 0
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_an_attribute_that_is_not_there_is_named(tmp_path: Path) -> None:
    class Wrong(Own):
        keeps = ("sean",)

    engine, _ = engine_of(Wrong(), tmp_path)
    with pytest.raises(InputError, match=r"Wrong\.keeps lists 'sean'"):
        engine.run()


def test_a_checkpoint_without_what_is_kept_now_is_refused_by_name(tmp_path: Path) -> None:
    engine_of(Own(), tmp_path, max_steps=5)[0].run()
    process: Any = Own()
    process.critic, process.sched = nn.Linear(1, 1), scheduler(rates.StepLR, 2)()
    engine, saver = engine_of(process, tmp_path)
    with pytest.raises(
        CheckpointError, match=r"lacks the state of process\.critic, process\.sched"
    ):
        engine.resume(saver)
    cut, _ = engine_of(process, tmp_path / "other", max_steps=5)
    cut.run()
    engine, saver = engine_of(Own(), tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"process\.critic, which is not there"):
        engine.resume(saver)


class Probe:
    """Handler without a state of its own, which holds what has one."""

    def __init__(self) -> None:
        self.counts = {"a": Counter()}
        self.inner = Evaluate({"probe": Loader(DATA, batch_size=12)}, pipes=[Counter()])

    def handlers(self) -> list[Handler]:
        return [Handler(event=Event.STEP_END, fn=self.count)]

    def count(self, engine: Engine) -> None:
        self.counts["a"]()
        self.inner.run(engine)


def test_what_a_handler_holds_is_kept_and_the_pipes_of_evaluations_that_it_makes(
    tmp_path: Path,
) -> None:
    counts: list[Any] = []

    def run(folder: Path, **options: Any) -> Any:
        torch.manual_seed(0)
        closed, probe, pipe = Counter(), Probe(), Counter()
        counts[:] = [closed, probe.counts["a"], probe.inner.pipes.pipes[0], pipe]

        def count_in_closure(engine: Engine) -> None:
            closed()
            evaluate(engine.process, Loader(DATA, batch_size=12), split="own", pipes=[pipe])

        engine, saver = engine_of(Own(), folder, **options)
        engine.bus.extend(probe.handlers())
        engine.on("step_end")(count_in_closure)
        engine.resume(saver)
        engine.run()
        return [each.count for each in counts]

    assert run(tmp_path / "whole") == [12, 12, 24, 24]
    run(tmp_path / "cut", max_steps=5)
    assert run(tmp_path / "cut") == [12, 12, 24, 24]
