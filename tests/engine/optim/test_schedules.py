"""Learning rates in closed form: a function of the step, whatever the optimizer's past."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import combinations, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR

from assay.core.errors import InputError
from assay.engine import Evaluate, MultiOptimizerStep, Process, ScaledOptimizerStep
from assay.engine.loop.engine import Engine
from assay.engine.loop.engine_state import restore, restore_changed
from assay.engine.loop.process import Supervised
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.schedules import (
    Constant,
    LearningRate,
    Noam,
    Schedule,
    TorchSchedule,
    WarmupCosine,
    WarmupExponential,
    WarmupLinear,
    WarmupMultiStep,
    WarmupPoly,
    WarmupStep,
)
from engine.toys import engine, kept, loader, net, same_bits, supervised

DECAYING = [WarmupCosine, WarmupLinear]
shares = st.floats(0.0, 1.0)


def sgd(lr: float = 1.0, *, other: float | None = None) -> torch.optim.SGD:
    """An optimizer of one parameter, or of two with a rate each."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))]}]
    if other is not None:
        groups.append({"params": [nn.Parameter(torch.zeros(1))], "lr": other})  # type: ignore[dict-item]
    return torch.optim.SGD(groups, lr=lr)


def rates_of_torch(scheduler: LRScheduler, steps: int) -> list[float]:
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return [float(rate) for rate in rates]


# ------------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_a_cosine_is_that_of_torch(final: float) -> None:
    expected = rates_of_torch(CosineAnnealingLR(sgd(), T_max=40, eta_min=final), 41)

    schedule = WarmupCosine(final=final)

    assert [schedule.factor(step, 40) for step in range(41)] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_a_line_is_that_of_torch(final: float) -> None:
    expected = rates_of_torch(
        LinearLR(sgd(), start_factor=1.0, end_factor=final, total_iters=40), 45
    )

    schedule = WarmupLinear(final=final)

    assert [schedule.factor(step, 40) for step in range(45)] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", DECAYING)
@pytest.mark.parametrize("start", [0.001, 0.5])
def test_warming_up_is_that_of_torch(kind: type[WarmupCosine | WarmupLinear], start: float) -> None:
    expected = rates_of_torch(
        LinearLR(sgd(), start_factor=start, end_factor=1.0, total_iters=10), 11
    )

    schedule = kind(warmup_steps=10, start=start)

    assert [schedule.factor(step, 100) for step in range(11)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", DECAYING)
@given(st.integers(1, 1000), st.integers(0, 1200), shares, shares)
def test_a_schedule_rises_from_its_start_to_one_and_falls_to_its_end(
    kind: type[WarmupCosine | WarmupLinear], total: int, warmup: int, start: float, final: float
) -> None:
    schedule = kind(warmup_steps=warmup, start=start, final=final)
    factors = [schedule.factor(step, total) for step in range(total + 3)]

    assert factors[0] == (start if warmup else 1.0)
    assert factors[:warmup] == sorted(factors[:warmup])
    if warmup < total:
        assert factors[warmup] == 1.0
        assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
        assert factors[total:] == pytest.approx([final] * 3, abs=1e-12)
    assert all(min(start, final) - 1e-12 <= factor <= 1.0 for factor in factors)


def test_half_way_through_the_decay_both_forms_are_half_way_down() -> None:
    for kind in DECAYING:
        assert kind(warmup_steps=20, final=0.2).factor(60, 100) == pytest.approx(0.6)
    assert WarmupLinear(warmup_steps=20).factor(40, 100) == pytest.approx(0.75)
    assert WarmupCosine(warmup_steps=20).factor(40, 100) == pytest.approx((2 + math.sqrt(2)) / 4)


@pytest.mark.row("E32")
def test_a_share_of_the_run_is_warmed_up_rounded_up_to_whole_steps() -> None:
    def warmup(ratio: float, total: int) -> int:
        """The first step at full rate."""
        schedule = WarmupLinear(warmup_ratio=ratio)
        return next(step for step in range(total + 1) if schedule.factor(step, total) == 1.0)

    for percent in range(100):
        for total in (100, 128, 3000):
            assert warmup(percent / 100, total) == math.ceil(Fraction(percent, 100) * total)
    assert warmup(5 / 300, 300 * 469) == 5 * 469


def test_a_constant_rate_needs_to_know_nothing() -> None:
    assert {Constant().factor(step, total) for step in (0, 10**9) for total in (None, 5)} == {1.0}


@pytest.mark.parametrize("kind", DECAYING)
@pytest.mark.parametrize(
    "options",
    [
        {"warmup_ratio": 1.0},
        {"warmup_ratio": -0.1},
        {"warmup_steps": -1},
        {"warmup_steps": 3, "warmup_ratio": 0.1},
    ],
)
def test_what_is_no_warm_up_is_refused(
    kind: type[WarmupCosine | WarmupLinear], options: dict[str, float]
) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        kind(**options)  # type: ignore[arg-type]


@pytest.mark.row("A59")
def test_the_length_of_the_run_comes_from_the_data_and_a_stream_that_has_none_is_refused() -> None:
    def supervised() -> Supervised:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return Supervised(
            model,
            nn.MSELoss(),
            backward=OptimizerStep(optimizer, schedule=WarmupLinear(warmup_steps=2)),
        )

    def stream() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(8):
            yield torch.zeros(1, 1), torch.zeros(1, 1)

    process, rates = supervised(), []
    known = Engine(process, list(stream()))
    known.on("step_begin")(lambda: rates.append(process.backward.rate.read()[""]))
    known.run()
    assert rates == pytest.approx([0.001, 0.5005, *(1 - step / 6 for step in range(6))])

    with pytest.raises(
        InputError, match="WarmupLinear needs to know how long the run is"
    ) as caught:
        Engine(supervised(), stream(), epochs=1).run()
    assert "steps" in caught.value.fix


# -------------------------------------------------------------------------------------------------- applied to groups


def test_each_group_has_its_own_rate_times_the_factor() -> None:
    optimizer = sgd(0.1, other=0.01)
    rate = LearningRate(optimizer, WarmupLinear())
    rate.total = 10

    rate.set(4)

    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.06, 0.006])
    assert rate.read()[""] == optimizer.param_groups[0]["lr"]


def test_rates_go_on_after_a_state_was_loaded() -> None:
    optimizer = sgd(0.1, other=0.01)
    rate = LearningRate(optimizer, WarmupLinear())
    rate.total = 10
    rate.set(9)

    optimizer.load_state_dict(sgd(0.1, other=0.01).state_dict())
    rate.set(5)

    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.005])
    assert rate.read()[""] == pytest.approx(0.05)


def test_the_base_of_a_rate_that_was_scheduled_before_is_what_it_began_with() -> None:
    optimizer = sgd(0.1)
    first = LearningRate(optimizer, WarmupLinear())
    first.total = 10
    first.set(9)

    again = LearningRate(optimizer, WarmupLinear())
    again.total = 10
    again.set(0)

    assert again.read()[""] == 0.1


@pytest.mark.parametrize("schedule", [None, Constant()])
def test_without_a_schedule_rates_stay_what_they_are(schedule: Schedule | None) -> None:
    optimizer = sgd(0.1, other=0.01)

    LearningRate(optimizer, schedule).set(100)

    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


# ------------------------------------------------------------------------------------------------- every form of decay


@pytest.mark.row("A58")
def test_noam_rises_to_its_peak_at_the_end_of_the_warm_up_and_falls_with_the_root() -> None:
    noam = Noam(512, warmup_steps=4000)

    def rate(number: int) -> float:
        """That of update number `number`, from 1."""
        return noam.factor(number - 1, None)

    assert rate(1) == pytest.approx(1.746928e-07, rel=1e-6)
    assert rate(4000) == pytest.approx(6.987712e-04, rel=1e-6)
    assert max(range(1, 9000), key=rate) == 4000
    assert rate(16000) == pytest.approx(rate(4000) / 2)
    assert Noam(512, warmup_steps=4000, scale=2.0).factor(0, None) == 2 * rate(1)
    with pytest.raises(InputError, match="warmup_steps is 0"):
        Noam(512, warmup_steps=0)


@pytest.mark.row("E45")
def test_a_schedule_that_is_told_nothing_takes_its_length_from_the_run() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = WarmupCosine(warmup_ratio=0.1, final=0.01)
    process, rates = (
        Supervised(model, nn.MSELoss(), backward=OptimizerStep(optimizer, schedule=schedule)),
        [],
    )
    engine = Engine(process, [(torch.zeros(1, 1), torch.zeros(1, 1))] * 25, epochs=4)
    engine.on("step_begin")(lambda: rates.append(process.backward.rate.read()[""]))

    engine.run()

    assert rates[0] == pytest.approx(0.001 * 0.2)
    assert max(rates) == rates[10] == 0.2
    assert process.backward.rate.read()[""] == pytest.approx(0.01 * 0.2)


@pytest.mark.row("E46")
def test_after_the_warm_up_each_form_goes_down_as_its_formula_says() -> None:
    warm: dict[str, Any] = {"warmup_steps": 20, "start": 0.5}
    forms: list[tuple[Any, Callable[[int], float]]] = [
        (WarmupCosine(**warm), lambda step: 0.5 * (1 + math.cos(math.pi * (step - 20) / 80))),
        (WarmupLinear(**warm), lambda step: 1 - (step - 20) / 80),
        (
            WarmupPoly(power=3.0, final=0.1, **warm),
            lambda step: 0.1 + 0.9 * (1 - (step - 20) / 80) ** 3,
        ),
        (
            WarmupStep(30, gamma=0.5, **warm),
            lambda step: 1.0 if step < 50 else 0.5 if step < 80 else 0.25,
        ),
        (
            WarmupMultiStep([0.5, 0.9], **warm),
            lambda step: 1.0 if step < 50 else 0.1 if step < 90 else 0.01,
        ),
        (
            WarmupMultiStep([50, 90], gamma=0.2, **warm),
            lambda step: 1.0 if step < 50 else 0.2 if step < 90 else 0.04,
        ),
        (WarmupExponential(0.9, **warm), lambda step: 0.9 ** (step - 20)),
    ]

    for schedule, expected in forms:
        name = type(schedule).__name__
        up = [schedule.factor(step, 100) for step in range(20)]
        assert up == pytest.approx([0.5 + 0.5 * step / 20 for step in range(20)]), name
        assert schedule.factor(20, 100) == 1.0, name
        down = [schedule.factor(step, 100) for step in range(20, 101)]
        assert down == pytest.approx([expected(step) for step in range(20, 101)], abs=1e-12), name


def of_torch() -> list[tuple[Callable[[Any], LRScheduler], Any]]:
    """The schedulers of torch with a form here, each with it."""
    return [
        (
            lambda optimizer: StepLR(optimizer, step_size=30, gamma=0.1),
            WarmupStep(30, unit="epoch"),
        ),
        (
            lambda optimizer: MultiStepLR(optimizer, milestones=[10, 30, 80], gamma=0.1),
            WarmupMultiStep([10, 30, 80], unit="epoch"),
        ),
        (
            lambda optimizer: ExponentialLR(optimizer, gamma=0.9),
            WarmupExponential(0.9, unit="epoch"),
        ),
        (lambda optimizer: CosineAnnealingLR(optimizer, T_max=100), WarmupCosine(unit="epoch")),
        (
            lambda optimizer: PolynomialLR(optimizer, total_iters=100, power=2.0),
            WarmupPoly(unit="epoch"),
        ),
    ]


@pytest.mark.row("B24")
@pytest.mark.parametrize("unit", ["step", "epoch"])
@pytest.mark.parametrize("number", range(5))
def test_schedulers_of_torch_go_by_the_epoch_or_the_step_as_they_do_alone(
    number: int, unit: Any
) -> None:
    make, here = of_torch()[number]
    expected = rates_of_torch(make(sgd(0.1)), 100)
    length = 1 if unit == "step" else 7
    optimizer, other = sgd(0.1), sgd(0.1)
    theirs = LearningRate(optimizer, TorchSchedule(make(optimizer), unit=unit))
    ours = LearningRate(other, here)
    ours.total, theirs.epoch_length, ours.epoch_length = 100 * length, length, length

    for step in range(100 * length):
        theirs.set(step)
        ours.set(step)
        assert theirs.read()[""] == expected[step // length]
        assert ours.read()[""] == pytest.approx(expected[step // length], rel=1e-9, abs=1e-12)


# ------------------------------------------------------------------------------------------------- schedulers of torch


class Multiplied(LRScheduler):
    """A scheduler of a user's own: it multiplies any setting of the optimizer, step by step."""

    def __init__(self, optimizer: Any, name: str) -> None:
        self.name = name
        super().__init__(optimizer)

    def get_lr(self) -> Any:
        for group in self.optimizer.param_groups if self.last_epoch > 0 else ():
            value = group[self.name]
            is_pair = isinstance(value, tuple)
            group[self.name] = tuple(each * 0.9 for each in value) if is_pair else value * 0.9
        return [group["lr"] for group in self.optimizer.param_groups]


class Wrapped(LRScheduler):
    """A warm-up around another scheduler, which is an attribute."""

    def __init__(self, optimizer: Any, after: LRScheduler) -> None:
        self.after = after
        super().__init__(optimizer)

    def get_lr(self) -> Any:
        if self.last_epoch < 2:
            return [base * (self.last_epoch + 1) / 3 for base in self.base_lrs]
        return self.after.get_last_lr()

    def step(self, epoch: Any = None) -> None:
        if self.last_epoch >= 2:
            self.after.step()
        super().step()


class Falling:
    """A factor that depends on how often it was called, and not on the step."""

    def __init__(self) -> None:
        self.value = 1.0

    def __call__(self, step: int) -> float:
        self.value *= 0.8
        return self.value


TORCH: dict[str, Callable[[Any], Any]] = {
    **{
        name: partial(Multiplied, name=name)
        for name in ("weight_decay", "betas", "eps", "initial_lr")
    },
    "ExponentialLR": lambda o: ExponentialLR(o, gamma=0.9),
    "LambdaLR": lambda o: LambdaLR(o, lambda step: 1 / (step + 1)),
    "LambdaLR with a state": lambda o: LambdaLR(o, Falling()),
    "MultiplicativeLR": lambda o: MultiplicativeLR(o, lambda step: 1 / (step + 1)),
    "OneCycleLR": lambda o: OneCycleLR(o, max_lr=1.0, total_steps=30),
    "CyclicLR": lambda o: CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "ChainedScheduler": lambda o: ChainedScheduler([ExponentialLR(o, 0.9), StepLR(o, 3)]),
    "SequentialLR": lambda o: SequentialLR(
        o, [LinearLR(o, 0.1, total_iters=3), CosineAnnealingLR(o, T_max=9)], milestones=[3]
    ),
    "SWALR": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=3),
    "a warm-up around another": lambda o: Wrapped(o, CosineAnnealingLR(o, 9)),
}
HOW: list[dict[str, Any]] = [{}, {"deferred": True}, {"accumulate": 2}, {"every": 2}, {"fp16": 1}]
PAIRED = ("weight_decay", "OneCycleLR", "SequentialLR", "ReduceLROnPlateau")
"""Schedulers that are tried with two of these at once."""


def scheduled(kind: str, unit: str = "step", lr: float = 0.1, **how: Any) -> tuple[Any, list[Any]]:
    """A run of nine steps, and the settings that each of its steps has."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    plateau = partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.5)
    schedule: Any = TORCH.get(kind, plateau)(optimizer)
    if unit == "epoch":
        schedule = TorchSchedule(schedule, unit="epoch")
    step: Any = (ScaledOptimizerStep if "fp16" in how else OptimizerStep)(
        optimizer, schedule=schedule
    )
    process = supervised(model, backward=step)
    if "every" in how:
        step = MultiOptimizerStep({"only": step}, every={"only": how["every"]})
        process = ByName(model, step)
    runs = engine(
        process,
        loader(accumulate=how.get("accumulate", 1)),
        epochs=3,
        deferred=how.get("deferred"),
    )
    evaluate = Evaluate({"valid": loader(8)}, every="1 epoch")
    runs.bus.extend(evaluate.handlers())
    seen: list[Any] = []

    def note() -> None:
        (group,) = optimizer.param_groups
        seen.append({key: value for key, value in group.items() if key != "params"})

    runs.on("step_begin")(note)
    return runs, seen


class ByName(Process):
    """The same regression, its loss by the name of its optimizer."""

    def __init__(self, model: nn.Module, backward: MultiOptimizerStep) -> None:
        self.model = model
        self.backward = backward

    def forward_step(self, batch: Any) -> Any:
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        return {"only": loss}, {"loss": loss.detach()}


@pytest.mark.parametrize(
    ("kind", "unit", "how"),
    [
        *product(TORCH, ("step", "epoch"), HOW),
        *product(("ReduceLROnPlateau",), ("step",), HOW),
        *product(PAIRED, ("step",), (one | other for one, other in combinations(HOW[1:], 2))),
    ],
    ids=str,
)
def test_a_scheduler_of_torch_resumes_from_every_step_with_the_settings_of_an_unbroken_run(
    kind: str, unit: str, how: dict[str, Any]
) -> None:
    whole, expected = scheduled(kind, unit, **how)
    saved: dict[int, Any] = {}
    whole.on("step_end")(lambda engine, state: saved.setdefault(state.step, kept(engine)))
    whole.run()
    assert any(settings != expected[0] for settings in expected), "the schedule changes nothing"

    for step in range(1, 9):
        resumed, seen = scheduled(kind, unit, **how)
        restore(resumed, saved[step])
        resumed.run()
        assert seen == expected[step:], f"resumed at {step}"
        assert same_bits(resumed.process.model.state_dict(), whole.process.model.state_dict())


@pytest.mark.parametrize("kind", TORCH)
def test_a_changed_setting_of_a_resumed_run_is_that_of_a_run_that_began_with_it(kind: str) -> None:
    first, _ = scheduled(kind)
    saved: list[Any] = []
    first.on("step_end")(lambda engine, state: state.step == 5 and saved.append(kept(engine)))
    first.run()
    asked, expected = scheduled(kind, lr=0.02)
    asked.run()

    resumed, seen = scheduled(kind, lr=0.02)
    restore_changed(resumed, saved[0], ["optimizer.lr"])
    resumed.run()

    assert seen == expected[5:]


@pytest.mark.parametrize("patience", [0, 3])
def test_a_changed_plateau_keeps_what_it_has_seen(patience: int) -> None:
    first, _ = scheduled("ReduceLROnPlateau")
    first.run()
    resumed, _ = scheduled("ReduceLROnPlateau")
    scheduler: Any = resumed.process.backward.rate.schedule.scheduler
    scheduler.patience = patience

    restore_changed(resumed, kept(first), ["schedule.scheduler.patience"])

    before: Any = first.process.backward.rate.schedule.scheduler
    assert scheduler.patience == patience
    assert (scheduler.best, scheduler.last_epoch) == (before.best, before.last_epoch)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_scheduler_that_is_new_or_of_another_class_is_run_from_its_beginning(
    is_new: bool,
) -> None:
    first, _ = scheduled("ExponentialLR")
    saved: list[Any] = []
    first.on("step_end")(lambda engine, state: state.step == 5 and saved.append(kept(engine)))
    first.run()
    if is_new:
        del saved[0]["schedule"]
    whole, expected = scheduled("OneCycleLR")
    whole.run()

    resumed, seen = scheduled("OneCycleLR")
    restore(resumed, saved[0])
    resumed.run()

    assert [each["lr"] for each in seen] == [each["lr"] for each in expected[5:]]


def test_an_epoch_that_goes_on_after_its_expected_end_keeps_its_rate() -> None:
    class Longer:
        """Says that it has two batches, and has three."""

        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[Any]:
            return iter([(torch.zeros(2, 4), torch.zeros(2, 2))] * 3)

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = OptimizerStep(
        optimizer, schedule=TorchSchedule(LambdaLR(optimizer, Falling()), unit="epoch")
    )
    runs, rates = engine(supervised(model, backward=step), Longer(), epochs=2), []
    runs.on("step_begin")(lambda: rates.append(step.rate.read()[""]))
    runs.run()

    assert len(set(rates[:3])) == len(set(rates[3:])) == 1
    assert rates[0] > rates[3]


def test_a_bare_scheduler_is_stepped_at_every_update() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    backward = OptimizerStep(optimizer, schedule=StepLR(optimizer, step_size=2, gamma=0.5))
    process, rates = Supervised(model, nn.MSELoss(), backward=backward), []
    engine = Engine(process, [(torch.zeros(1, 1), torch.zeros(1, 1))] * 6)
    engine.on("step_begin")(lambda: rates.append(backward.rate.read()[""]))

    engine.run()

    assert rates == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_what_cannot_be_followed_by_the_step_is_refused() -> None:
    optimizer = sgd()

    with pytest.raises(InputError, match="metric is 'valid/acc', and StepLR follows the steps"):
        TorchSchedule(StepLR(optimizer, 3), metric="valid/acc")
    with pytest.raises(InputError, match="StepLR was made for another optimizer"):
        LearningRate(optimizer, StepLR(sgd(), 3))
    with pytest.raises(InputError, match="is a Linear; a schedule gives a factor"):
        LearningRate(optimizer, nn.Linear(1, 1))  # type: ignore[arg-type]


def test_a_schedule_by_the_epoch_changes_nothing_within_one_and_needs_their_length() -> None:
    rate = LearningRate(sgd(), WarmupLinear(unit="epoch", warmup_epochs=1, start=0.5))
    with pytest.raises(InputError, match="how many steps an epoch has is unknown"):
        rate.set(0)
    rate.total, rate.epoch_length = 12, 3
    rates = []
    for step in range(12):
        rate.set(step)
        rates.append(rate.read()[""])

    assert rates == pytest.approx([0.5] * 3 + [1.0] * 3 + [2 / 3] * 3 + [1 / 3] * 3)


@pytest.mark.parametrize(
    ("make", "total", "said"),
    [
        (lambda _: WarmupCosine(warmup_steps=21), 20, "takes 21 steps, and the run has 20"),
        (lambda _: WarmupStep(3, warmup_steps=21), 20, "takes 21 steps, and the run has 20"),
        (
            lambda _: WarmupExponential(0.9, warmup_epochs=6, unit="epoch"),
            20,
            "takes 6 epochs, and the run has 5",
        ),
        (lambda o: OneCycleLR(o, 1.0, total_steps=19), 20, "OneCycleLR has 19 steps, and .* 20"),
        (
            lambda o: TorchSchedule(OneCycleLR(o, 1.0, total_steps=4), unit="epoch"),
            20,
            "OneCycleLR has 4 steps, and the run has 5 epochs",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused_before_it(
    make: Callable[[Any], Any], total: int, said: str
) -> None:
    optimizer = sgd()
    rate = LearningRate(optimizer, make(optimizer))

    with pytest.raises(InputError, match=said):
        rate.start(0, total=total, epoch_length=4)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: WarmupCosine(warmup_steps=20),
        lambda _: WarmupLinear(warmup_ratio=0.99),
        lambda _: WarmupPoly(warmup_epochs=5, unit="epoch"),
        lambda o: OneCycleLR(o, 1.0, total_steps=20),
        lambda o: TorchSchedule(OneCycleLR(o, 1.0, total_steps=5), unit="epoch"),
        lambda o: CosineAnnealingLR(o, 3),
    ],
)
def test_a_schedule_that_just_fits_gives_a_rate_for_every_update_of_the_run(
    make: Callable[[Any], Any],
) -> None:
    optimizer = sgd()
    rate = LearningRate(optimizer, make(optimizer))

    rate.start(0, total=20, epoch_length=4)
    first = rate.read()
    rate.walk(20)

    assert rate.read() == first


def test_a_scheduler_that_ends_within_a_run_of_unknown_length_is_an_error_of_the_user() -> None:
    optimizer = sgd()
    rate = LearningRate(optimizer, OneCycleLR(optimizer, 1.0, total_steps=10))
    rate.start(0, total=None, epoch_length=None)

    with pytest.raises(InputError, match="OneCycleLR ends after 10 steps"):
        rate.set(11)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
def test_a_setting_that_is_not_finite_is_refused(name: str, value: float) -> None:
    optimizer = sgd()
    optimizer.param_groups[0][name] = value

    with pytest.raises(InputError, match=f"{name} of SGD is {value}"):
        LearningRate(optimizer)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WarmupLinear(unit="epochs"), "unit is 'epochs'"),  # type: ignore[arg-type]
        (
            lambda: WarmupLinear(unit="epoch", warmup_steps=3),
            "warmup_steps is given, but",
        ),
        (lambda: WarmupLinear(warmup_epochs=3), "warmup_epochs is given, but"),
        (lambda: WarmupStep(0), "step_size is 0"),
        (lambda: WarmupPoly(power=0.0), "power is 0.0"),
        (lambda: WarmupMultiStep([10, 2.5]), "milestone 2.5"),
        (lambda: WarmupMultiStep([0.5]).factor(1, None), "needs to know how long the run is"),
    ],
)
def test_what_is_no_schedule_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()
