"""Deferred numbers: no step waits for the device, and nothing else is any different."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import (
    EMA,
    Engine,
    Loader,
    MultiOptimizerStep,
    NonFiniteError,
    OptimizerStep,
    Supervised,
    WarmupLinear,
)
from assay.engine.numerics.deferred import MAX_STEPS, copy_unless_, fetch_rows
from engine.toys import hard_net, kept, loader, net, points, same_bits

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adagrad": (torch.optim.Adagrad, {}),
}
WAITS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
}


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations for which a GPU would make the host wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.waits += func in WAITS
        return func(*args, **(kwargs or {}))


class Kinds(Supervised):
    """Process with a loss that is a mean, a (sum, weight), or several by name, one of no weight."""

    kind = "mean"
    logs = True

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        inputs, target = batch
        pred = self.model(inputs)
        square = (pred - target).square()
        count = torch.tensor(square.numel())
        loss: Any = square.mean()
        if self.kind == "sum":
            loss = (square.sum(), count)
        if self.kind == "named":
            loss = {
                "square": square.mean(),
                "plain": ((pred - target).abs().sum(), count),
                "seen": pred.max() / 0.0,
            }
        if self.logs:
            self.log("aux", pred.mean())
        return loss, {"pred": pred}


def made(
    kind: str = "momentum",
    *,
    model: nn.Module | None = None,
    train: Any = None,
    loss: str = "mean",
    deferred: bool = True,
    handlers: Any = (),
    epochs: int = 3,
    **given: Any,
) -> Engine:
    model = net() if model is None else model
    make, options = KINDS[kind]
    optimizer = make(model.parameters(), lr=0.01, fused=True, **options)
    weights = {"plain": 0.5, "seen": 0.0} if loss == "named" else None
    backward = OptimizerStep(
        optimizer, schedule=WarmupLinear(warmup_steps=3), weights=weights, **given
    )
    process = Kinds(model, nn.MSELoss(), backward=backward)
    process.kind = loss
    train = loader(shuffle=True) if train is None else train
    return Engine(
        process,
        train,
        epochs=epochs,
        recorder=MemoryRecorder(),
        handlers=handlers,
        deferred=deferred,
    )


def both(make: Callable[[bool], Engine]) -> tuple[Engine, Engine]:
    """Train with every number read at once, and deferred; assert equal records and states."""
    runs = []
    for deferred in (False, True):
        each = make(deferred)
        try:
            each.run()
        except NonFiniteError as error:
            each.state.error = error
        runs.append(each)
    at_once, late_one = runs
    assert repr(points_of(late_one)) == repr(points_of(at_once))
    assert same_bits(kept(late_one), kept(at_once))
    assert repr(late_one.state.loss) == repr(at_once.state.loss)
    assert not any(
        "found_inf" in vars(each) for each in late_one.process.backward.optimizers.values()
    )
    return at_once, late_one


def points_of(runs: Engine) -> list[tuple[str, int, float]]:
    recorder = runs.recorder
    assert isinstance(recorder, MemoryRecorder)
    return sorted(recorder.points)


def skipped_of(runs: Engine) -> int:
    backward = runs.process.backward
    assert isinstance(backward, OptimizerStep)
    return backward.skipped


def spoilt(where: int, *, size: int = 40) -> Any:
    data = points(size)
    data.tensors[1][where, 0] = math.inf
    return data


@contextmanager
def counted() -> Iterator[Counting]:
    mode = Counting()
    with mode:
        yield mode


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clip_norm", [None, 0.1, 1e6])
def test_weights_and_points_are_the_same_bits(kind: str, clip_norm: float | None) -> None:
    at_once, _ = both(lambda deferred: made(kind, deferred=deferred, clip_norm=clip_norm))

    assert len(points_of(at_once)) == 9 * (3 if clip_norm is None else 4) + 3
    assert at_once.state.step == 9


@pytest.mark.parametrize("loss", ["mean", "sum", "named"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_so_they_are_for_each_kind_of_loss_and_window(loss: str, accumulate: int) -> None:
    train = Loader(points(20), batch_size=12, accumulate=accumulate)

    both(
        lambda deferred: made(
            deferred=deferred, loss=loss, train=train, model=net(dtype=torch.float32)
        )
    )


@pytest.mark.row("C22", "C58")
def test_no_step_waits_for_the_device() -> None:
    handlers: list[Any] = []

    def waits_of(steps: int, *, deferred: bool, policy: Any = "stop") -> int:
        train = [[part[:8] for part in points(8).tensors]] * steps
        runs = made(
            "adamw",
            model=hard_net(),
            train=train,
            deferred=deferred,
            clip_norm=0.1,
            non_finite=policy,
            epochs=1,
        )
        runs.bus.extend(handlers)
        runs.process.logs = False  # type: ignore[attr-defined] # a value on the CPU is read when it is logged
        with counted() as mode:
            runs.run()
        assert runs.state.step == steps
        return mode.waits

    for policy in ("stop", "skip", "ignore"):
        once = waits_of(10, deferred=True, policy=policy)
        assert waits_of(30, deferred=True, policy=policy) == once < 10
    assert waits_of(30, deferred=False) - waits_of(10, deferred=False) >= 40
    handlers += EMA(0.9).handlers()
    assert waits_of(30, deferred=True) == waits_of(10, deferred=True)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_step_that_is_not_finite_is_gone_back_to(
    kind: str, clip_norm: float | None, shuffle: bool
) -> None:
    def make(deferred: bool) -> Engine:
        train = Loader(spoilt(21, size=64), batch_size=4, shuffle=shuffle)
        ema = EMA(0.9, warmup=True, every=1 if shuffle else 2)
        return made(
            kind,
            model=hard_net(),
            train=train,
            deferred=deferred,
            clip_norm=clip_norm,
            handlers=ema.handlers(),
        )

    at_once, deferred = both(make)

    assert type(deferred.state.error) is NonFiniteError
    assert str(deferred.state.error) == str(at_once.state.error)
    assert "the data: batch[1] holds inf, in sample 21 of data.train" in str(deferred.state.error)
    assert 0 < deferred.state.step < 16 and deferred.state.step == at_once.state.step
    assert all(weight.grad is None for weight in deferred.process.model.parameters())
    assert all(tensor.isfinite().all() for tensor in deferred.process.model.state_dict().values())


def test_a_step_is_gone_back_to_over_the_end_of_many() -> None:
    """The bad step is read only after `MAX_STEPS` more, all of which leave the weights alone."""
    train = Loader(spoilt(10, size=MAX_STEPS * 3), batch_size=1)
    runs = made(train=train)
    seen: list[int] = []
    weights: list[Any] = []
    runs.on("step_end")(lambda state: seen.append(state.step))
    runs.on("step_end")(lambda model: weights.append(model[0].weight.detach().clone()))

    with pytest.raises(NonFiniteError, match="The loss is inf at step 11"):
        runs.run()

    assert (
        seen == list(range(1, MAX_STEPS + 1)) or len(seen) < MAX_STEPS
    )  # a second may have gone by
    assert len(seen) > 11
    assert all(torch.equal(each, weights[9]) for each in weights[10:])
    assert not torch.equal(weights[8], weights[9])
    assert runs.state.step == 10


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("policy", ["skip", "ignore"])
def test_a_step_that_is_left_out_or_not_leaves_the_same(
    policy: Any, clip_norm: float | None
) -> None:
    def make(deferred: bool) -> Engine:
        train = Loader(spoilt(21, size=32), batch_size=4, shuffle=True)
        return made(
            "adamw",
            model=hard_net(),
            train=train,
            deferred=deferred,
            non_finite=policy,
            clip_norm=clip_norm,
            epochs=2,
        )

    at_once, deferred = both(make)

    assert deferred.state.step == 16
    assert skipped_of(deferred) == skipped_of(at_once) == 2 * (policy == "skip")
    finite = all(weight.isfinite().all() for weight in deferred.process.model.parameters())
    assert finite == (policy == "skip")


def test_who_is_called_at_some_steps_finds_what_was_read() -> None:
    runs = made(train=Loader(spoilt(10, size=64), batch_size=1))
    seen: list[tuple[int, float]] = []
    runs.on("step_end", every=4)(lambda state: seen.append((state.step, state.loss)))

    with pytest.raises(NonFiniteError, match="at step 11"):
        runs.run()

    assert [step for step, _ in seen] == [4, 8]
    recorder = runs.recorder
    assert isinstance(recorder, MemoryRecorder)
    assert [dict(recorder.curve("train/loss"))[step] for step, _ in seen] == [
        loss for _, loss in seen
    ]


def test_the_loss_of_a_step_can_be_asked_for_in_it() -> None:
    def losses(deferred: bool) -> list[float]:
        runs, seen = made(deferred=deferred), []
        runs.on("step_end")(lambda state: seen.append(state.loss))
        runs.run()
        return seen

    assert losses(True) == losses(False)
    assert len(set(losses(True))) == 9


def test_another_error_is_told_together_with_the_step_that_was_not_finite() -> None:
    runs = made(train=Loader(spoilt(10, size=64), batch_size=1))

    @runs.on("step_end")
    def explode(state: Any) -> None:
        if state.step == 15:
            raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError) as caught:
        runs.run()

    assert any("before that: The loss is inf at step 11" in note for note in caught.value.__notes__)
    assert runs.state.step == 10


class Game(Supervised):
    """Two networks, each with a loss of its own; the second sees what the first gives."""

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        one, other = self.model.children()
        first = one(batch[0])
        second = other(first)
        losses = {
            "first": (first - batch[1]).square().mean(),
            "second": (second - batch[1]).square().mean(),
        }
        return losses, {}


@pytest.mark.parametrize("spoil", [False, True])
@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("every", [{}, {"second": 3}])
def test_several_optimizers_leave_out_a_step_together(
    spoil: bool, policy: Any, every: dict[str, int]
) -> None:
    def make(deferred: bool) -> Engine:
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(4, 2), nn.Linear(2, 2)])
        parts = {
            name: OptimizerStep(
                torch.optim.Adam(part.parameters(), lr=0.01, fused=True),
                clip_norm=clip,
                non_finite=policy,
            )
            for name, part, clip in zip(("first", "second"), model, (None, 0.5), strict=True)
        }
        process = Game(model, nn.MSELoss(), backward=MultiOptimizerStep(parts, every=every))
        train = Loader(spoilt(25) if spoil else points(40), batch_size=4, shuffle=True)
        return Engine(process, train, epochs=2, recorder=MemoryRecorder(), deferred=deferred)

    at_once, deferred = both(make)

    assert str(deferred.state.error) == str(at_once.state.error)
    assert (deferred.state.error is not None) == (spoil and policy == "stop")
    for name in ("first", "second"):
        assert deferred.process.backward[name].skipped == at_once.process.backward[name].skipped  # type: ignore[index]


def test_an_optimizer_that_can_leave_nothing_out_is_waited_for_and_that_is_said() -> None:
    def make(deferred: bool) -> Engine:
        model = net()
        process = Supervised(model, nn.MSELoss(), torch.optim.RMSprop(model.parameters(), lr=0.01))
        return Engine(process, loader(), epochs=2, recorder=MemoryRecorder(), deferred=deferred)

    _, deferred = both(make)

    assert isinstance(deferred.recorder, MemoryRecorder)
    (told,) = [fact for fact in deferred.recorder.facts if isinstance(fact, Warned)]
    assert "waits for the device" in told.message and "RMSprop" in told.message


@pytest.mark.parametrize("spoil", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_loop_by_hand_is_read_late_as_well(spoil: bool, own: bool) -> None:
    def make(deferred: bool) -> Any:
        runs = made(
            train=Loader(spoilt(9) if spoil else points(40), batch_size=4),
            deferred=deferred,
            epochs=1,
        )
        process = runs.process

        def run() -> None:
            for inputs, target in runs:
                loss = (process.model(inputs) - target).square().mean()
                if own:
                    loss.backward()
                    process.backward.optimizers[""].step()
                    process.backward.optimizers[""].zero_grad()
                    runs.log("loss", loss)
                else:
                    runs.backward(loss)

        runs.run = run  # type: ignore[assignment, method-assign]
        return runs

    if own and spoil:  # the code has updated with it: only what is said can be the same
        with pytest.raises(
            NonFiniteError, match="The loss is inf at step 3, and the loop updated the weights"
        ):
            make(True).run()
        return
    at_once, deferred = both(make)

    assert deferred.state.step == (2 if spoil else 10)
    told = [str(each.state.error).partition("\n")[0] for each in (deferred, at_once)]
    assert told[0] == told[1]


@given(
    st.sampled_from(
        [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex128]
    ),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=32, max_size=32),
    st.booleans(),
)
def test_a_masked_copy_moves_bits_and_nothing_else(
    dtype: torch.dtype, one: bytes, other: bytes, stays: bool
) -> None:
    def tensor(data: bytes) -> Tensor:
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return (raw % 2).bool() if dtype == torch.bool else raw.view(dtype)

    target, source = tensor(one), tensor(other)
    expected = (target if stays else source).clone()

    copy_unless_(torch.tensor(float(stays)), [target], [source])

    assert (
        target.contiguous().view(torch.uint8).tolist()
        == expected.contiguous().view(torch.uint8).tolist()
    )


def test_numbers_of_several_kinds_are_read_in_order() -> None:
    rows = [
        torch.tensor([1.0]),
        torch.tensor([2.0**53 + 2, 3.0], dtype=torch.float64),
        torch.tensor([4.0, 5.0]),
    ]

    assert fetch_rows(rows) == [[1.0], [2.0**53 + 2, 3.0], [4.0, 5.0]]
    assert fetch_rows([]) == []


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_on_a_gpu_a_step_makes_the_host_wait_for_nothing() -> None:
    model = hard_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    process = Supervised(model, nn.MSELoss(), backward=OptimizerStep(optimizer, clip_norm=0.1))
    train = Loader(points(400), batch_size=8)
    runs = Engine(process, train, epochs=1, device="cuda", recorder=MemoryRecorder())
    runs.on("step_begin")(
        lambda state: torch.cuda.set_sync_debug_mode("error" if 2 <= state.step < 40 else "default")
    )

    try:
        runs.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert runs.state.step == 50
    assert Counter(name for name, _, _ in points_of(runs))["train/loss"] == 50


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_on_a_gpu_a_step_that_is_not_finite_leaves_the_weights_as_they_were(policy: Any) -> None:
    model = hard_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    process = Supervised(model, nn.MSELoss(), backward=OptimizerStep(optimizer, non_finite=policy))
    runs = Engine(
        process,
        Loader(spoilt(21), batch_size=4),
        epochs=1,
        device="cuda",
        recorder=MemoryRecorder(),
    )

    if policy == "stop":
        with pytest.raises(NonFiniteError, match="at step 6"):
            runs.run()

    else:
        runs.run()
        assert skipped_of(runs) == 1
    assert runs.state.step == (5 if policy == "stop" else 10)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())
