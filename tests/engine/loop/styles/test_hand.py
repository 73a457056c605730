"""`for batch in engine`: the body is the user's, everything around it is as in `run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import (
    Accuracy,
    ByHand,
    Engine,
    Evaluate,
    Loader,
    MultiOptimizerStep,
    NonFiniteError,
    OptimizerStep,
    Save,
    Saver,
)
from assay.engine.checkpoint.folder import load_parts
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import (
    Noisy,
    engine,
    hard_net,
    heard,
    loader,
    net,
    same_bits,
    supervised,
    weights_of,
)

Body = Callable[[Engine, Any], None]


def hand(train: Any = None, model: nn.Module | None = None, **given: Any) -> Engine:
    model = net() if model is None else model
    process = ByHand(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    return Engine(process, loader() if train is None else train, **{"epochs": 2, **given})


def step(runs: Engine, batch: Any) -> Tensor:
    """The whole of a step, as it is written by hand."""
    optimizer = runs.process.backward.optimizer
    loss = mse_loss(runs.process.model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    runs.log("loss", loss)
    return loss


@pytest.mark.row("B22")
def test_all_events_are_those_of_a_run() -> None:
    runs, reference = hand(loader(20, 8, accumulate=2)), engine(train=loader(20, 8, accumulate=2))
    events, expected = heard(runs), heard(reference)

    for inputs, target in runs:
        runs.backward(mse_loss(runs.process.model(inputs), target))
    reference.run()

    assert events == expected != []


def test_the_body_sees_where_it_is() -> None:
    runs, seen = hand(loader(20, 8)), []

    for batch in runs:
        assert runs.state.batch is batch
        seen.append((runs.state.epoch, runs.state.epoch_step, runs.state.step))
        step(runs, batch)

    assert seen == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4), (1, 2, 5)]


def test_losses_rates_and_what_is_logged_are_recorded() -> None:
    recorder = MemoryRecorder()
    runs, losses = hand(recorder=recorder), []

    for batch in runs:
        losses.append(step(runs, batch).item())
        runs.log("size", float(len(batch[0])))

    assert recorder.curve("train/loss") == list(enumerate(losses, 1))
    assert [value for _, value in recorder.curve("train/size")] == [8, 8, 4] * 2
    assert recorder.curve("train/lr") == [(i, 0.05) for i in range(1, 7)]


def test_a_loss_that_nobody_told_is_not_recorded() -> None:
    recorder = MemoryRecorder()
    runs = hand(recorder=recorder)

    for inputs, target in runs:
        mse_loss(runs.process.model(inputs), target).backward()  # type: ignore[no-untyped-call]
        runs.process.backward.optimizer.step()

    assert recorder.curve("train/loss") == [] and len(recorder.curve("train/lr")) == 6


def test_it_is_evaluated_while_it_trains() -> None:
    def judge(batch: Any) -> dict[str, Tensor]:
        return {"pred": model(batch[0]), "target": batch[1].argmax(1)}

    model = net()
    process = ByHand(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        validate=judge,
        metrics={"acc": Accuracy()},
    )
    recorder = MemoryRecorder()
    runs = Engine(process, loader(), epochs=3, recorder=recorder)
    runs.bus.extend(Evaluate({"valid": loader(10, 4)}).handlers())

    for batch in runs:
        assert model.training
        step(runs, batch)

    assert [at for at, _ in recorder.curve("valid/acc")] == [3, 6, 9]


def noisy() -> Engine:
    return hand(Loader(Noisy(), batch_size=8, shuffle=True), hard_net(), epochs=3)


@pytest.mark.row("B22")
@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_loop_that_was_left_goes_on_with_the_same_bits(at: int, tmp_path: Path) -> None:
    whole, first, second = noisy(), noisy(), noisy()
    for batch in whole:
        step(whole, batch)

    first.bus.extend(Save(Saver(tmp_path), every="1 step").handlers())
    for batch in first:
        step(first, batch)
        if first.state.step + 1 == at:
            break
    restore(second, load_parts(tmp_path / Saver(tmp_path).find("latest").name))
    assert (first.state.step, second.state.step) == (at, at)
    for batch in second:
        step(second, batch)

    assert same_bits(weights_of(second.process.model), weights_of(whole.process.model))
    assert second.state.state_dict() == whole.state.state_dict()


def test_leaving_the_loop_ends_the_run_and_counts_what_was_updated() -> None:
    runs = hand()
    events = heard(runs)
    for batch in runs:
        step(runs, batch)
        if runs.state.step == 1:
            break

    assert (runs.state.step, runs.state.micro_step, runs.state.stop.reason) == (
        2,
        2,
        "the loop was left",
    )
    assert events[-2:] == ["step_end", "run_end"] and "exception" not in events


def test_leaving_the_loop_before_the_update_counts_nothing_of_the_window() -> None:
    runs = hand(loader(20, 8, accumulate=2))
    before = weights_of(runs.process.model)
    for inputs, target in runs:
        runs.backward(mse_loss(runs.process.model(inputs), target))
        if runs.state.micro_step == 1:
            break

    assert (runs.state.step, runs.state.micro_step) == (0, 0)
    assert same_bits(weights_of(runs.process.model), before)


def test_stop_ends_the_loop_after_the_step() -> None:
    runs = hand()
    for batch in runs:
        step(runs, batch)
        if runs.state.step == 3:
            runs.stop("good enough")

    assert (runs.state.step, runs.state.stop.reason) == (4, "good enough")


def test_what_the_body_raises_is_raised_and_the_last_whole_step_is_saved(tmp_path: Path) -> None:
    runs = hand()
    runs.bus.extend(Save(Saver(tmp_path), every="100 steps").handlers())

    with pytest.raises(ZeroDivisionError):
        for batch in runs:
            if runs.state.step == 4:
                raise ZeroDivisionError
            step(runs, batch)

    assert Saver(tmp_path).find("latest").step == 4


def test_no_hook_stays_on_the_optimizer() -> None:
    runs = hand()
    for batch in runs:
        step(runs, batch)

    assert not runs.process.backward.optimizer._optimizer_step_post_hooks


# ------------------------------------------------------------------------------------------------------------- mistakes


def nothing(runs: Engine, batch: Any) -> None:
    """Forgets all about learning."""


def no_step(runs: Engine, batch: Any) -> None:
    mse_loss(runs.process.model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (nothing, "the loop learned nothing from a batch"),
        (no_step, "the loop made gradients, and no update with them"),
    ],
)
def test_a_body_that_forgets_the_update_is_told(body: Body, said: str) -> None:
    runs = hand()

    with pytest.raises(InputError, match=said) as caught:
        for batch in runs:
            body(runs, batch)

    assert "engine.backward(loss)" in caught.value.fix and runs.state.step == 0


def test_an_update_for_each_of_several_micro_batches_is_refused() -> None:
    runs = hand(loader(20, 8, accumulate=2))

    with pytest.raises(InputError, match="updates the weights for each batch, but 2 are one step"):
        for batch in runs:
            step(runs, batch)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"clip_norm": 1.0}, "clip_norm"), ({"non_finite": "skip"}, 'non_finite = "skip"')],
    ids=["clip_norm", "skip"],
)
def test_a_setting_that_would_do_nothing_is_refused(settings: Any, said: str) -> None:
    model = net()
    backward = OptimizerStep(torch.optim.SGD(model.parameters(), lr=0.1), **settings)
    runs = Engine(ByHand(model, backward=backward), loader(), epochs=1)

    with pytest.raises(InputError, match=f"{said} would do nothing"):
        for batch in runs:
            step(runs, batch)


def test_a_loss_that_is_not_finite_stops_though_the_update_was_made() -> None:
    runs = hand()

    with pytest.raises(
        NonFiniteError, match="The loss is nan at step 3, and the loop updated the weights with it"
    ):
        for batch in runs:
            step(runs, batch)
            if runs.state.step == 2:
                runs.logged.means.clear()
                runs.log("loss", float("nan"))


def test_run_says_that_there_is_a_loop_to_write() -> None:
    with pytest.raises(InputError, match="This training is a loop by hand"):
        hand().run()


def test_the_schedule_goes_on_though_the_update_is_not_ours() -> None:
    model, recorder = net(), MemoryRecorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward = OptimizerStep(
        optimizer,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    )
    runs = Engine(ByHand(model, backward=backward), loader(), epochs=1, recorder=recorder)

    for batch in runs:
        step(runs, batch)

    assert [rate for _, rate in recorder.curve("train/lr")] == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_a_rate_that_the_body_sets_stays_and_is_recorded() -> None:
    recorder = MemoryRecorder()
    runs = hand(loader(), epochs=1, recorder=recorder)

    for batch in runs:
        runs.process.backward.optimizer.param_groups[0]["lr"] = 0.1 * (runs.state.step + 1)
        step(runs, batch)

    assert [rate for _, rate in recorder.curve("train/lr")] == pytest.approx([0.1, 0.2, 0.3])


def test_two_optimizers_may_be_stepped_in_one_body() -> None:
    one, other = net(seed=1), net(seed=2)
    rates = {"one": (one, 0.1), "other": (other, 0.2)}
    optimizers = {
        name: torch.optim.SGD(model.parameters(), lr=lr) for name, (model, lr) in rates.items()
    }
    backward = MultiOptimizerStep(
        {name: OptimizerStep(optimizer) for name, optimizer in optimizers.items()}
    )
    recorder = MemoryRecorder()
    process = ByHand(nn.ModuleDict({"one": one, "other": other}), backward=backward)
    runs = Engine(process, loader(), epochs=2, recorder=recorder)

    for inputs, target in runs:
        for model, optimizer in zip((one, other), optimizers.values(), strict=True):
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        runs.log("loss", loss)

    assert runs.state.step == 6 and len(recorder.curve("train/loss")) == 6
    for seed, (model, lr) in enumerate(rates.values(), 1):
        alone = supervised(net(seed=seed), optimizer=None, backward=None)
        alone.backward = OptimizerStep(torch.optim.SGD(alone.model.parameters(), lr=lr))
        engine(alone).run()
        assert same_bits(weights_of(model), weights_of(alone.model))


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_optimizers_of_torch_are_given_by_name(is_wrapped: bool) -> None:
    model = net()
    optimizers = {
        "first": torch.optim.Adam(model[0].parameters()),
        "last": torch.optim.SGD(model[2].parameters(), lr=0.1),
    }
    process = (
        ByHand(model, backward=MultiOptimizerStep(optimizers))
        if is_wrapped
        else ByHand(model, optimizers)
    )
    runs = Engine(process, loader(), epochs=2)
    before = weights_of(model)

    for inputs, targets in runs:
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers.values():
            optimizer.step()

    assert runs.state.step == 6
    assert {"optimizer.first", "optimizer.last"} <= capture_state(runs).keys()
    assert all(not torch.equal(value, before[name]) for name, value in weights_of(model).items())


@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adam, 0.1, {"first": "adam"}, {"first": torch.optim.SGD}, {}]
)
def test_what_is_no_optimizer_is_refused_with_what_to_write(optimizer: Any) -> None:
    with pytest.raises(InputError, match=r"optimizer|OptimizerStep"):
        ByHand(net(), optimizer)


class Count:
    """A state of one's own."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_the_state_of_the_loop_is_kept_without_a_listener(tmp_path: Path) -> None:
    def run(*, leaves_at: int = 0) -> tuple[int, dict[str, Any], Any]:
        runs = hand()
        runs.bus.extend(Save(Saver(tmp_path), every="1 step").handlers())
        count, own = runs.keep(Count()), runs.keep({"sum": torch.zeros(())})
        head = runs.keep(nn.Linear(1, 1))
        runs.resume(Saver(tmp_path))
        for batch in runs:
            loss = step(runs, batch)
            count.seen += 1
            own["sum"] = own["sum"] + loss.detach()
            own[str(runs.state.step)] = count.seen
            nn.init.constant_(head.bias, float(count.seen))
            if runs.state.step + 1 == leaves_at:
                runs.stop("left", interrupts=True)
        return count.seen, own, head.state_dict()

    run(leaves_at=4)
    seen, own, head = run()

    assert seen == 6
    assert list(own) == ["sum", *map(str, range(6))]
    assert float(head["bias"]) == 6


@pytest.mark.parametrize("thing", [3, [1], Count])
def test_what_has_no_state_cannot_be_kept(thing: Any) -> None:
    with pytest.raises(InputError, match="no state that a checkpoint could keep"):
        hand().keep(thing)


def test_a_process_of_another_style_may_be_called_in_the_body() -> None:
    runs, reference = engine(supervised()), engine(supervised())
    reference.run()

    for batch in runs:
        runs.backward(runs.process.forward_step(batch)[0])

    assert same_bits(weights_of(runs.process.model), weights_of(reference.process.model))
