"""Traces of runs: what is in them, and that taking them changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.engine import EMA, Engine, Evaluate, Loader, Supervised
from assay.engine.trace.tracer import Tracer
from assay.formats.trace_file import Level
from assay.query.traces import Alignment, TracedStep, align, steps_in
from engine.toys import Noisy, hard_net, points, supervised

Made = tuple[bytes, list[Tensor]]


def trained(
    model: nn.Module | None = None,
    *,
    level: Level | None = "full",
    every: int = 1,
    first: int = 0,
    steps: int = 6,
    seed: int = 1,
    process: Callable[[nn.Module], Any] = supervised,
    change: Callable[[Engine], object] = lambda engine: None,
    **loader: Any,
) -> Made:
    """The trace of a short training, and the weights at its end."""
    model = hard_net() if model is None else model
    data = loader.pop("data", None) or Noisy()
    train = Loader(data, batch_size=4, shuffle=True, seed=seed, **loader)
    engine = Engine(process(model), train, steps=steps, seed=1)
    out: list[bytes] = []
    if level is not None:
        engine.bus.extend(Tracer(out.append, every=every, level=level, first=first).handlers())
    change(engine)
    engine.run()
    return b"".join(out), [*model.parameters(), *model.buffers()]


def steps(made: Made) -> list[TracedStep]:
    return list(steps_in(made[0]))


def parted(left: Made, right: Made) -> Alignment:
    return align(steps_in(left[0]), steps_in(right[0]))


@pytest.mark.parametrize("level", ["default", "full"])
def test_a_trace_changes_no_bit_of_the_run(level: Level) -> None:
    _, plain = trained(level=None)
    _, watched = trained(level=level)

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_the_default_level_has_batch_loss_gradients_and_weights_of_step_1_and_every_nth() -> None:
    made = steps(trained(level="default", every=3, steps=7))

    assert [each.step for each in made] == [0, 1, 3, 6]
    names = [
        f"{each.site.phase} {each.site.module} {each.site.name}".replace("  ", " ")
        for each in made[1].digests
    ]
    assert names[:5] == [
        *("data sample indices", "data batch.0", "data batch.1"),
        *("randomness generator", "loss loss"),
    ]
    assert "backward model.0 weight.grad" in names and "optimizer model.4 bias" in names
    assert names[-1] == "state model.1 num_batches_tracked"
    assert {each.site.phase for each in made[0].digests} == {"init"}


@pytest.mark.parametrize("kind", [hard_net, lambda: Recurrent(0.0)], ids=["dropout", "lstm"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_equal_runs_have_equal_traces(kind: Callable[[], nn.Module], accumulate: int) -> None:
    found = parted(*(trained(kind(), accumulate=accumulate) for _ in range(2)))

    assert found.difference is None
    assert (found.first_step, found.last_step, found.equal_until) == (0, 6, 6)
    assert found.compared > 100


def test_twenty_equal_pairs_are_never_told_as_different() -> None:
    for seed in range(20):
        level: Level = "default" if seed % 4 else "full"
        first, second = (
            trained(steps=3, seed=seed, level=level, accumulate=1 + seed % 2) for _ in range(2)
        )
        assert parted(first, second).difference is None, seed


class Recurrent(nn.Module):
    """An LSTM with noise in its backward pass from the fourth step on."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 2)
        self.noise, self.calls = noise, 0

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.body(x[:, None])
        if self.training:
            self.calls += 1
        if self.noise and self.calls >= 4:
            out.register_hook(lambda grad: grad + self.noise)
        return self.head(out[:, -1])


class Op(nn.Module):
    """A layer whose function can be changed from a step on."""

    def __init__(self, function: Callable[[Tensor], Tensor], *, since: int = 1) -> None:
        super().__init__()
        self.function, self.since, self.calls = function, since, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return self.function(x) if self.calls >= self.since else torch.relu(x)


def with_op(function: Callable[[Tensor], Tensor], *, since: int = 1) -> nn.Sequential:
    model = hard_net()
    model[2] = Op(function, since=since)
    return model


def with_rate(rate: float) -> nn.Module:
    model = hard_net()
    model[3] = nn.Dropout(rate)
    return model


def flipped() -> nn.Module:
    model = hard_net()
    with torch.no_grad():
        model[4].weight.view(torch.int32)[0, 0] ^= 1
    return model


def flip_at(step: int) -> Callable[[Engine], object]:
    def change(engine: Engine) -> None:
        @engine.on("step_end")
        def flip() -> None:
            if engine.state.step == step:
                with torch.no_grad():
                    engine.process.model[0].bias.view(torch.int32)[0] ^= 1

    return change


def faster(model: nn.Module) -> Supervised:
    return supervised(model, lr=0.0500001)


def nondeterministic(x: Tensor) -> Tensor:
    return x * (1 + time.perf_counter_ns() % 1000003 * 1e-7)


class Swapped(Noisy):
    """The same data, but for two samples that are in each other's place."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs[[3, 11]] = self.inputs[[11, 3]]


class Brighter(Noisy):
    """The same data with another augmentation."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().__getitem__(index)
        return inputs + 1e-6, targets


def drawn_before(engine: Engine) -> None:
    """Let a handler seed the generator again after the engine did."""

    @engine.on("backward_begin")
    def seed() -> None:
        if engine.state.step == 2:
            torch.manual_seed(99)


FAULTS: dict[str, tuple[Callable[[], Made], tuple[Any, ...]]] = {
    "other order": (lambda: trained(seed=2), (1, "data", "", "sample indices")),
    "two samples swapped": (lambda: trained(data=Swapped()), (2, "data", "", "batch.0")),
    "augmentation": (lambda: trained(data=Brighter()), (1, "data", "", "batch.0")),
    "another seed in a handler": (
        lambda: trained(change=drawn_before),
        (3, "randomness", "", "generator"),
    ),
    "dropout": (lambda: trained(with_rate(0.31)), (1, "forward", "model.3", "aten.bernoulli_")),
    "one ulp at init": (lambda: trained(flipped()), (0, "init", "model.4", "weight")),
    "one ulp amid the run": (
        lambda: trained(change=flip_at(3)),
        (4, "forward", "model.0", "aten.addmm"),
    ),
    "op replaced": (
        lambda: trained(with_op(torch.sigmoid, since=3)),
        (3, "forward", "model.2", "aten.relu"),
    ),
    "op not deterministic": (
        lambda: trained(with_op(nondeterministic)),
        (1, "forward", "model.2", "aten.relu"),
    ),
    "noise behind": (lambda: trained(Recurrent(1e-6)), (4, "backward", "model.body", "aten.add")),
    "optimizer": (lambda: trained(process=faster), (1, "optimizer", "", "aten.add_")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_its_step_phase_module_and_operation(fault: str) -> None:
    make, (step, phase, module, what) = FAULTS[fault]
    base = (
        trained(Recurrent(0.0))
        if fault == "noise behind"
        else trained(with_op(torch.relu) if "op " in fault else None)
    )

    first = parted(base, make()).difference

    assert first is not None
    assert (first.step, first.phase, first.module, first.op or first.name) == (
        step,
        phase,
        module,
        what,
    )


def test_where_the_level_is_default_in_one_of_two_what_both_have_is_compared() -> None:
    found = parted(trained(level="default", every=2), trained(flipped()))

    assert found.difference is not None and found.difference.name == "weight"
    assert parted(trained(level="default", every=2), trained()).difference is None


def test_a_full_trace_begins_at_the_step_that_it_is_asked_for() -> None:
    made = steps(trained(first=4))

    assert [each.step for each in made] == [0, 4, 5, 6]
    assert any(each.site.kind == "random operation" for each in made[1].digests)


def test_a_run_that_fails_leaves_no_listener_behind() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        trained(with_op(fail, since=2))

    assert torch.relu(torch.ones(1)).item() == 1  # no mode is left on the stack
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class Passes:
    """A batch sampler that counts how often it is gone through."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.count += 1
        return iter([[0, 1], [2, 3], [4, 5]])

    def __len__(self) -> int:
        return 3


def test_a_sampler_of_the_user_is_not_gone_through_once_more() -> None:
    counts = []
    for level in (None, "full"):
        passes = Passes()
        engine = Engine(supervised(), Loader(points(), batch_sampler=passes), epochs=2)
        if level is not None:
            engine.bus.extend(Tracer(lambda data: None, every=1, level="full").handlers())
        engine.run()
        counts.append(passes.count)

    assert counts[0] == counts[1]


def test_an_operation_that_draws_with_another_argument_is_no_other_randomness() -> None:
    seeded = parted(trained(), trained(change=drawn_before))
    rate = parted(trained(), trained(with_rate(0.31)))

    assert rate.difference is not None and rate.kind == "operation"
    assert "drawn with" in rate.difference.left and "0.69" in rate.difference.right
    assert seeded.kind in ("tensor", "random operation")


class Counting(nn.Module):
    """Counts its evaluations in a buffer."""

    evaluated: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("evaluated", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.evaluated += not self.training
        return x + self.evaluated


@pytest.mark.parametrize("level", ["default", "full"])
def test_a_buffer_that_an_evaluation_writes_is_in_the_trace_and_no_operation_of_the_engine(
    level: Level,
) -> None:
    def evaluate(engine: Engine) -> None:
        engine.bus.extend(
            Evaluate({"valid": Loader(Noisy(), batch_size=4)}, every="2 steps").handlers()
        )

    model = nn.Sequential(hard_net(), Counting())
    found = steps(trained(model, level=level, every=100, steps=4, change=evaluate))

    written = [
        (each.step, each.site.module, each.site.name)
        for step in found
        for each in step.digests
        if each.site.phase == "evaluation"
    ]
    assert written == [(2, "model.1", "evaluated"), (4, "model.1", "evaluated")]
    outside = [
        each.site.name
        for step in found
        for each in step.digests
        if each.site.kind != "tensor" and each.site.phase == "forward" and not each.site.module
    ]
    assert outside == []


def averaged(decay: float, *, every: int = 1) -> Callable[[Engine], object]:
    """Return what adds an average of the weights to an engine."""
    return lambda engine: engine.bus.extend(EMA(decay, every=every).handlers())


def test_another_decay_of_the_average_parts_two_traces_at_its_update() -> None:
    for level in ("default", "full"):
        first = trained(change=averaged(0.9, every=2), level=level)
        other = trained(change=averaged(0.8, every=2), level=level)

        found = parted(first, other)

        assert found.difference is not None
        assert (found.difference.step, found.difference.phase) == (2, "average")
        assert found.difference.module.startswith("EMA.")
        assert found.equal_until == 1
        assert parted(first, trained(change=averaged(0.9, every=2), level=level)).difference is None


def test_a_trace_without_averages_compares_with_one_that_has_them() -> None:
    found = parted(trained(change=averaged(0.9)), trained())

    assert found.difference is None and found.last_step == 6


def test_an_average_is_traced_in_the_steps_whose_weights_are() -> None:
    made = steps(trained(change=averaged(0.9), level="default", every=3, steps=7))

    traced = [each.step for each in made if any(d.site.phase == "average" for d in each.digests)]
    assert traced == [1, 3, 6]
