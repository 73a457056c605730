"""Evaluation: the whole split, weighted by its samples, and training does not notice."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.core.errors import InputError
from assay.core.facts import Evaluated, Warned
from assay.core.ports import MemoryRecorder
from assay.engine import (
    F1,
    Accuracy,
    ByHand,
    Collect,
    Engine,
    Evaluate,
    Loader,
    Supervised,
    evaluate,
)
from assay.engine.loop.bus import Bus, bind_by_name
from assay.engine.loop.bus import every as each
from assay.engine.loop.engine_state import capture_state
from assay.engine.loop.process import Process
from engine.toys import Noisy, engine, hard_net, heard, loader, net, points, same_bits, supervised


def training(every: str, **given: Any) -> tuple[Engine, MemoryRecorder]:
    """Seven steps of two and a bit epochs, with evaluation at a period."""
    recorder = MemoryRecorder()
    runs = engine(steps=7, recorder=recorder, **given)
    runs.bus.extend(Evaluate({"valid": loader(10, 4)}, every=every).handlers())
    return runs, recorder


# ------------------------------------------------------------------------------------------------------------- periods


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("1 epoch", [3, 6, 7]),
        ("2 epochs", [6, 7]),
        ("3 epochs", [7]),
        ("1 step", [1, 2, 3, 4, 5, 6, 7]),
        ("3 steps", [3, 6, 7]),
        ("0.5 epoch", [2, 3, 5, 6, 7]),
        ("1.5 epochs", [5, 7]),
        ("7 steps", [7]),
        ("50 steps", [7]),
        ("never", []),
    ],
)
def test_it_evaluates_at_its_period_and_once_at_the_end(every: str, steps: list[int]) -> None:
    runs, recorder = training(every)

    runs.run()

    assert [step for step, _ in recorder.curve("valid/loss")] == steps
    assert [fact.step for fact in recorder.facts if isinstance(fact, Evaluated)] == steps
    assert runs.state.metrics == (
        {"valid/loss": recorder.curve("valid/loss")[-1][1]} if steps else {}
    )


@pytest.mark.row("A63")
def test_two_epochs_apart_means_after_the_second_fourth_and_sixth() -> None:
    runs = engine(epochs=6)
    runs.bus.extend(Evaluate({"valid": loader(10, 4)}, every="2 epochs").handlers())
    epochs: list[int] = []
    runs.on("eval_begin")(lambda state: epochs.append(state.epoch))

    runs.run()

    assert epochs == [2, 4, 6]


def test_a_share_of_an_epoch_is_the_step_that_completes_it() -> None:
    found: list[int] = []
    runs = engine(epochs=2, handlers=[each("0.25 epoch", lambda state: found.append(state.step))])
    assert runs.state.epoch_length is not None

    runs.run()

    length = runs.state.epoch_length
    assert found == sorted({math.ceil(part * length / 4) for part in range(1, 9)})


def test_a_share_of_an_epoch_whose_length_nobody_knows_is_refused() -> None:
    bus = Bus(bind_by_name({}))

    with pytest.raises(InputError, match="nobody knows how long an epoch is"):
        bus.extend([each("0.5 epoch", print)])  # type: ignore[list-item]


def test_a_run_that_goes_on_later_does_not_evaluate_before_it_ends() -> None:
    runs, recorder = training("1 epoch")
    runs.on("step_end", every=5)(lambda: runs.stop("SIGTERM", interrupts=True))

    runs.run()

    assert [step for step, _ in recorder.curve("valid/loss")] == [3]


def test_a_run_that_is_stopped_for_good_evaluates_what_it_has() -> None:
    runs, recorder = training("1 epoch")
    runs.on("step_end", every=5)(lambda: runs.stop("enough"))

    runs.run()

    assert [step for step, _ in recorder.curve("valid/loss")] == [3, 5]


def test_a_period_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="'2 eons' is no period"):
        Evaluate({"valid": loader()}, every="2 eons").handlers()


def test_train_is_no_name_of_an_evaluated_split_as_train_loss_is_that_of_the_steps() -> None:
    with pytest.raises(InputError, match="train/loss is the loss of the steps") as caught:
        engine(steps=1, handlers=[Evaluate({"train": loader(10, 4)})])

    assert "another name" in caught.value.fix
    assert Evaluate({"train": loader(10, 4)}, every="never").handlers() == []


def test_without_splits_nothing_listens() -> None:
    assert Evaluate({}).handlers() == []


# ----------------------------------------------------------------------------------------------------- changes nothing


class Drawing(Supervised):
    """What it measures depends on all three global generators."""

    def forward_step(self, batch: Any) -> Any:
        inputs, targets = batch
        if not self.model.training:
            inputs = inputs + torch.rand(()) + random.random() + float(np.random.rand())
        return super().forward_step((inputs, targets))


def observed_run(every: str) -> tuple[Any, list[Tensor], MemoryRecorder]:
    model, recorder = hard_net(), MemoryRecorder()
    process = Drawing(model, nn.MSELoss(), torch.optim.AdamW(model.parameters(), lr=0.01))
    runs = engine(process, Loader(Noisy(), batch_size=8, shuffle=True), epochs=3, recorder=recorder)
    runs.bus.extend(
        Evaluate(
            {"valid": loader(10, 4), "noisy": Loader(Noisy(6), batch_size=4)}, every=every
        ).handlers()
    )
    seen: list[Tensor] = []
    runs.on("step_end")(lambda state: seen.append(state.batch[0].clone()))
    random.seed(1), np.random.seed(1)
    runs.run()
    parts = capture_state(runs)
    assert bool(parts["state"].pop("metrics")) == (every != "never")
    assert parts["state"].pop("evaluated") == ({} if every == "never" else {"valid": 9, "noisy": 9})
    return [parts, random.random(), float(np.random.rand())], seen, recorder


@pytest.mark.parametrize("every", ["1 step", "2 steps", "1 epoch"])
def test_evaluating_changes_no_bit_of_the_training(every: str) -> None:
    watched, batches, recorder = observed_run(every)
    alone, own_batches, own = observed_run("never")

    assert same_bits(watched, alone)
    assert same_bits(batches, own_batches)
    for name in ("train/loss", "train/lr"):
        assert recorder.curve(name) == own.curve(name)
    assert recorder.curve("valid/loss")


def test_a_split_gives_the_same_numbers_whenever_it_is_looked_at() -> None:
    process = Drawing(hard_net(), nn.MSELoss())
    noisy = Loader(Noisy(10), batch_size=4, split="valid")

    first = evaluate(process, noisy, split="valid")
    torch.rand(3), random.random(), np.random.rand()
    second = evaluate(process, noisy, split="valid")

    assert first == second


def test_the_model_learns_nothing_while_it_is_evaluated() -> None:
    process = supervised(hard_net())
    before = capture_state(engine(process))["model"]
    before = {name: tensor.clone() for name, tensor in before.items()}

    evaluate(process, loader(10, 4), split="valid")

    assert same_bits(process.model.state_dict(), before)
    assert process.model.training
    assert all(parameter.grad is None for parameter in process.model.parameters())


def test_every_module_is_in_eval_mode_within_and_in_its_own_mode_afterwards() -> None:
    runs, _ = training("2 steps", process=supervised(hard_net()))
    model = runs.process.model
    within: list[bool] = []
    around: list[list[bool]] = []
    runs.on("run_begin")(lambda: model[1].eval())  # type: ignore[operator, index]
    for event in ("eval_step_begin", "eval_step_end", "eval_end"):
        runs.on(event)(lambda: within.extend(module.training for module in model.modules()))
    for event in ("step_begin", "run_end"):
        runs.on(event, priority=1000)(
            lambda: around.append([module.training for module in model.modules()])
        )

    runs.run()

    assert within and not any(within)
    assert around == [[True, True, False, True, True, True]] * 8


def test_modules_that_a_process_looks_after_itself_go_on_training_too() -> None:
    class Two(Supervised):
        other = nn.Dropout()

        def train(self, mode: bool = True) -> None:
            super().train(mode)
            self.other.train(mode)

    model = net()
    runs, _ = training(
        "2 steps", process=Two(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    )
    modes: list[bool] = []
    runs.on("eval_end")(lambda: modes.append(Two.other.training))
    runs.on("step_begin")(lambda: modes.append(Two.other.training))

    runs.run()

    assert modes == [True, True, False, True, True, False, True, True, False, True, False]


def test_modes_come_back_though_the_evaluation_fails() -> None:
    runs = engine(supervised(hard_net()))
    runs.bus.extend(Evaluate({"valid": [object()]}, every="1 step").handlers())

    with pytest.raises(InputError):
        runs.run()

    assert all(module.training for module in runs.process.model.modules())


# ---------------------------------------------------------------------------------------------------------- its numbers


def test_a_split_in_which_every_label_is_ignored_has_a_loss_that_is_no_number() -> None:
    """Without one, that of the evaluation before would stand as the newest."""
    process = Supervised(nn.Identity(), nn.CrossEntropyLoss())
    scores, ignored = torch.randn(6, 3), torch.full((6,), -100)

    results, _ = evaluate(process, [(scores, ignored)], split="valid")
    some, _ = evaluate(process, [(scores, ignored), (scores, ignored.clamp(min=0))], split="valid")

    assert results.keys() == some.keys() == {"valid/loss"}
    assert math.isnan(results["valid/loss"]) and math.isfinite(some["valid/loss"])


def classes(size: int) -> TensorDataset:
    inputs, _ = points(size).tensors
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 99])
def test_means_are_over_samples_whatever_the_batches(batch_size: int) -> None:
    inputs, targets = classes(10).tensors
    model = net()
    process = Supervised(
        model, nn.CrossEntropyLoss(), metrics={"acc": Accuracy(), "top2": Accuracy(top=2)}
    )

    results, samples = evaluate(process, Loader(classes(10), batch_size=batch_size), split="valid")

    with torch.no_grad():
        pred = model.eval()(inputs)
    assert samples == 10
    assert results == {
        "valid/loss": pytest.approx(nn.functional.cross_entropy(pred, targets).item(), rel=1e-6),
        "valid/acc": (pred.argmax(1) == targets).sum().item() / 10,
        "valid/top2": 1.0,
    }


def test_a_loss_of_sum_and_weight_is_averaged_by_its_weight() -> None:
    class Tokens(Supervised):
        def forward_step(self, batch: Any) -> Any:
            return None, {"loss": (batch.sum(), (batch > 0).sum())}

    batches = [torch.tensor([1.0, 2.0, 0.0]), torch.tensor([6.0])]

    results, _ = evaluate(Tokens(net(), nn.MSELoss()), batches, split="valid")

    assert results == {"valid/loss": 9.0 / 3}


class Several:
    """A metric of two numbers."""

    def reset(self) -> None:
        self.seen = 0

    def update(self, output: Any) -> None:
        self.seen += len(output["pred"])

    def value(self) -> dict[str, float]:
        return {"seen": self.seen, "half": self.seen / 2}


def test_a_metric_of_several_numbers_has_a_name_for_each_and_starts_anew_each_time() -> None:
    process = supervised(metrics={"count": Several()})

    for _ in range(2):
        results, _ = evaluate(process, loader(10, 4), split="valid")

    assert results["valid/count/seen"] == 10.0 and results["valid/count/half"] == 5.0


def test_several_splits_are_told_apart() -> None:
    recorder = MemoryRecorder()
    runs = engine(supervised(metrics={"count": Several()}), recorder=recorder, epochs=1)
    runs.bus.extend(Evaluate({"valid": loader(10, 4), "other": loader(6, 4)}).handlers())
    told = heard(runs)

    runs.run()

    facts = [fact for fact in recorder.facts if isinstance(fact, Evaluated)]
    assert [(fact.split, fact.step, fact.samples) for fact in facts] == [
        ("valid", 3, 10),
        ("other", 3, 6),
    ]
    assert facts[0].metrics.keys() == {"valid/loss", "valid/count/seen", "valid/count/half"}
    assert runs.state.metrics == {**facts[0].metrics, **facts[1].metrics}
    assert recorder.curve("other/count/seen") == [(3, 6.0)]
    assert (told.count("eval_begin"), told.count("eval_step_end"), told.count("eval_end")) == (
        2,
        5,
        2,
    )


@pytest.mark.row("A56")
def test_counters_of_training_do_not_move_during_an_evaluation() -> None:
    runs, _ = training("2 steps")
    names = ("step", "micro_step", "epoch", "epoch_step", "samples")
    pairs: list[tuple[Any, Any]] = []
    runs.on("eval_begin")(
        lambda state: pairs.append(([getattr(state, name) for name in names], None))
    )
    runs.on("eval_end")(
        lambda state: pairs.append((pairs.pop()[0], [getattr(state, name) for name in names])),
    )

    runs.run()

    assert len(pairs) == 4
    assert all(before == after for before, after in pairs)


@pytest.mark.row("E40")
@pytest.mark.parametrize(
    ("limit", "partial", "samples"),
    [(20, "20 of 32 batches", 20), (32, "", 32), (99, "", 32), (None, "", 32)],
)
def test_what_comes_of_a_part_of_a_split_is_recorded_as_such(
    limit: int | None, partial: str, samples: int
) -> None:
    recorder = MemoryRecorder()
    runs = engine(recorder=recorder, epochs=1)
    runs.bus.extend(Evaluate({"valid": loader(32, 1)}, limit=limit).handlers())

    runs.run()

    (fact,) = (fact for fact in recorder.facts if isinstance(fact, Evaluated))
    assert (fact.partial, fact.samples) == (partial, samples)


def test_a_limit_counts_batches_of_what_has_no_length_too() -> None:
    recorder = MemoryRecorder()
    runs = engine(recorder=recorder, epochs=1)
    taken: list[int] = []

    class Stream:
        def __iter__(self) -> Iterator[Any]:
            for number in range(5):
                taken.append(number)
                yield points(2).tensors

    runs.bus.extend(Evaluate({"valid": Stream()}, limit=2).handlers())

    runs.run()

    (fact,) = (fact for fact in recorder.facts if isinstance(fact, Evaluated))
    assert (fact.partial, fact.samples, taken) == ("at most 2 batches", 4, [0, 1])


def test_a_part_of_a_split_that_is_looked_at_changes_no_bit_of_the_training() -> None:
    models = []
    for limit in (None, 1):
        runs = engine(supervised(hard_net()), Loader(Noisy(), batch_size=8, shuffle=True), epochs=2)
        runs.bus.extend(
            Evaluate(
                {"valid": Loader(Noisy(10), batch_size=4)}, every="1 step", limit=limit
            ).handlers()
        )
        runs.run()
        models.append(runs.process.model.state_dict())

    assert same_bits(*models)


class Right:
    """A metric with the words of torchmetrics."""

    def reset(self) -> None:
        self.seen: list[Tensor] = []

    def update(self, pred: Tensor, target: Tensor) -> None:
        self.seen.append(pred.argmax(1) == target)

    def compute(self) -> Tensor:
        return torch.cat(self.seen).double().mean()


def test_a_metric_of_another_library_stands_among_ours() -> None:
    process = Supervised(
        net(), nn.CrossEntropyLoss(), metrics={"acc": Accuracy(), "theirs": Right(), "f1": F1()}
    )

    results, _ = evaluate(process, Loader(classes(10), batch_size=3), split="valid")

    assert results["valid/theirs"] == results["valid/acc"]
    assert results.keys() == {"valid/loss", "valid/acc", "valid/theirs", "valid/f1"}


# ------------------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(limit: int) -> None:
    with pytest.raises(InputError, match="it must be at least 1"):
        Evaluate({}, limit=limit)


def test_an_empty_split_is_named() -> None:
    with pytest.raises(InputError, match="The split valid is empty") as caught:
        evaluate(supervised(), [], split="valid")

    assert "[data.valid]" in caught.value.fix


def test_a_batch_that_cannot_be_counted_is_not_called_empty() -> None:
    class Opaque(Supervised):
        def forward_step(self, batch: Any) -> Any:
            return super().forward_step(points(2).tensors)

    with pytest.raises(
        InputError, match="How many samples a batch of the split valid holds is unknown"
    ) as caught:
        evaluate(Opaque(net(), nn.MSELoss()), [object()], split="valid")

    assert "object" in caught.value.what


def test_a_batch_on_another_device_is_told_as_it_is_in_training() -> None:
    inputs, targets = points(2).tensors

    with pytest.raises(InputError, match="The batch is on meta, the model on cpu"):
        evaluate(supervised(), [(inputs.to("meta"), targets)], split="valid")


def test_an_error_in_the_split_names_evaluation_and_ends_the_run() -> None:
    def broken() -> Iterator[Any]:
        yield points(2).tensors
        raise OSError("the disk is gone")

    runs = engine(epochs=1)
    runs.bus.extend(Evaluate({"valid": broken()}).handlers())

    with pytest.raises(OSError, match="the disk is gone") as caught:
        runs.run()

    assert any("Evaluate at epoch_end 1" in note for note in caught.value.__notes__)
    assert runs.state.metrics == {}


class PerClass:
    """Metric with a part for each class that occurred, as many of other libraries are."""

    def __init__(self) -> None:
        self.labels: list[int] = []

    def reset(self) -> None:
        self.labels = []

    def update(self, output: Any) -> None:
        self.labels += output["target"].flatten().long().tolist()

    def value(self) -> dict[str, float]:
        return {str(label): float(self.labels.count(label)) for label in set(self.labels)}


def test_a_part_that_is_not_measured_any_more_keeps_no_old_value() -> None:
    recorder = MemoryRecorder()
    runs = engine(steps=2, recorder=recorder)
    batches = [[{"target": torch.tensor([0, 1])}], [{"target": torch.tensor([1, 1])}]]
    runs.process.validation_step = lambda batch: batch  # type: ignore[method-assign]

    class Turns:
        def __iter__(self) -> Iterator[Any]:
            return iter(batches.pop(0))

    runs.bus.extend(
        Evaluate({"valid": Turns()}, every="1 step", metrics={"count": PerClass()}).handlers()
    )

    runs.run()

    assert recorder.curve("valid/count/0") == [(1, 1.0), (2, pytest.approx(math.nan, nan_ok=True))]
    assert recorder.curve("valid/count/1") == [(1, 1.0), (2, 2.0)]


def test_an_evaluation_that_measures_nothing_says_so_once() -> None:
    model = net()
    recorder = MemoryRecorder()
    process = ByHand(model, torch.optim.SGD(model.parameters(), lr=0.1))
    runs = Engine(process, loader(), epochs=3, recorder=recorder)
    runs.bus.extend(Evaluate({"valid": loader(4), "test": loader(4)}).handlers())

    for inputs, targets in runs:
        runs.backward(nn.functional.mse_loss(model(inputs), targets))

    told = [fact for fact in recorder.facts if isinstance(fact, Warned)]
    assert [fact.message.partition(":")[0] for fact in told] == [
        "The evaluation of valid measures nothing",
        "The evaluation of test measures nothing",
    ]
    assert "metrics={'acc': Accuracy()}" in told[0].message


def test_an_evaluation_that_only_collects_is_left_in_peace() -> None:
    model = net()
    recorder = MemoryRecorder()
    process = ByHand(model, torch.optim.SGD(model.parameters(), lr=0.1))
    runs = Engine(process, loader(), epochs=1, recorder=recorder)
    runs.bus.extend(Evaluate({"valid": loader(4)}, pipes=[Collect(["pred"])]).handlers())

    for inputs, targets in runs:
        runs.backward(nn.functional.mse_loss(model(inputs), targets))

    assert not [fact for fact in recorder.facts if isinstance(fact, Warned)]


@pytest.mark.parametrize(("device", "drawn_before"), [("cpu", [1, 2, 3]), ("meta", [2, 3, 3])])
def test_an_accelerator_gets_one_batch_ahead_in_an_evaluation(
    device: str, drawn_before: list[int]
) -> None:
    drawn: list[int] = []
    seen: list[tuple[int, str]] = []

    class Look(Process):
        model = nn.Identity()

        def forward_step(self, batch: Any) -> Any:
            seen.append((len(drawn), batch.device.type))
            return None, {}

    def batches() -> Iterator[Tensor]:
        for number in range(3):
            drawn.append(number)
            yield torch.ones(2)

    _, count = evaluate(Look(), batches(), split="test", device=device)

    assert seen == [(number, device) for number in drawn_before]
    assert count == 6
