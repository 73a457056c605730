"""train_batch of a class: its arguments, its recorded results, and the trainer's callbacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from assay import AvgMeter, Meter
from assay.compat.thexp import Trainer
from assay.compat.thexp.trainer import Callback, EvalCallback, LoggerCallback
from assay.core.errors import InputError
from assay.core.events import Event
from assay.core.facts import Evaluated, Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, OptimizerStep, evaluate
from engine.toys import heard, loader, net, points

Batches = list[tuple[Tensor, Tensor]]


def classes(*sizes: int) -> Batches:
    inputs, _ = points(sum(sizes)).tensors
    return [(part, part.sum(1).gt(0).long()) for part in inputs.split(list(sizes))]


class Learner(Trainer):
    """As in the text that the style comes from: everything of one batch by hand."""

    evaluated = True

    def initial_trainer(self, params: Any) -> None:
        self.model = net()
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.regist_databundler(
            train=params.train,
            **({"eval": classes(8), "test": classes(6)} if self.evaluated else {}),
        )
        self.seen: list[tuple[Any, ...]] = []

    def train_batch(
        self, eidx: int, idx: int, global_step: int, batch_data: Any, params: Any, device: Any
    ) -> Meter:
        xs, ys = batch_data
        meter = Meter()
        meter.loss = cross_entropy(self.model(xs), ys)
        meter.mean = xs.mean()
        meter.loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        self.seen.append((eidx, idx, global_step, params is self.params, str(device)))
        return meter


def learner(epochs: int = 2, train: Batches | None = None, **given: Any) -> Learner:
    trainer = Learner(SimpleNamespace(epoch=epochs, train=train or classes(8, 8, 4), **given))
    trainer.recorder = MemoryRecorder()
    return trainer


def told(trainer: Trainer, kind: type) -> list[Any]:
    assert isinstance(trainer.recorder, MemoryRecorder)
    return [fact for fact in trainer.recorder.facts if isinstance(fact, kind)]


@pytest.mark.row("C56")
def test_a_batch_comes_with_its_epoch_from_one_and_its_steps_from_nought() -> None:
    trainer = learner()

    state = trainer.train()

    assert [each[:3] for each in trainer.seen] == [
        (1, 0, 0),
        (1, 1, 1),
        (1, 2, 2),
        (2, 0, 3),
        (2, 1, 4),
        (2, 2, 5),
    ]
    assert {each[3:] for each in trainer.seen} == {(True, "cpu")}
    assert (state.step, state.epoch) == (6, 2)


def test_what_a_meter_holds_is_recorded_for_every_step() -> None:
    trainer = learner()

    trainer.train()

    assert isinstance(trainer.recorder, MemoryRecorder)
    means = [float(xs.mean()) for xs, _ in classes(8, 8, 4)]
    assert [value for _, value in trainer.recorder.curve("train/mean")] == pytest.approx(means * 2)
    assert len(trainer.recorder.curve("train/loss")) == 6


@pytest.mark.row("C21")
def test_means_begin_anew_with_each_epoch_and_are_over_samples() -> None:
    trainer = learner(epochs=3, train=classes(32, 8))
    trainer.average = AvgMeter()
    values = [float(xs.mean()) for xs, _ in classes(32, 8)]
    exact = (32 * values[0] + 8 * values[1]) / 40
    ends: list[float] = []

    class Look(Callback):
        def on_epoch_end(self, trainer: Trainer) -> None:
            assert trainer.average is not None
            ends.append(trainer.average.means()["mean"])

    Look().hook(trainer)
    trainer.train()

    assert ends == pytest.approx([exact] * 3, rel=1e-6)
    assert ends[0] != pytest.approx(sum(values) / 2, rel=1e-3)


# ------------------------------------------------------------------------------------------------ evaluation and tests


@pytest.mark.row("C62")
def test_twelve_epochs_are_evaluated_after_each_and_tested_after_five_ten_and_the_last() -> None:
    trainer = learner(epochs=12)

    trainer.train()

    found = told(trainer, Evaluated)
    assert [fact.step // 3 for fact in found if fact.split == "eval"] == list(range(1, 13))
    assert [fact.step // 3 for fact in found if fact.split == "test"] == [5, 10, 12]
    assert {fact.samples for fact in found if fact.split == "test"} == {6}


def test_the_last_epoch_is_tested_once_where_it_is_due_anyway() -> None:
    trainer = learner(epochs=10)

    trainer.train()

    assert [fact.step // 3 for fact in told(trainer, Evaluated) if fact.split == "test"] == [5, 10]


@pytest.mark.row("C61")
def test_the_callbacks_of_a_trainer_are_an_evaluation_and_a_log() -> None:
    trainer = learner()
    trainer.initial()

    evaluation, log = trainer.callbacks

    assert isinstance(evaluation, EvalCallback) and evaluation.every == {"eval": 1, "test": 5}
    assert isinstance(log, LoggerCallback)


@pytest.mark.row("C61")
def test_a_trainer_may_have_other_callbacks() -> None:
    class Silent(Learner):
        def initial_callback(self) -> None:
            EvalCallback(eval_every=2).hook(self)

    trainer = Silent(SimpleNamespace(epoch=4, train=classes(8)))
    trainer.recorder = MemoryRecorder()

    trainer.train()

    assert [fact.step for fact in told(trainer, Evaluated) if fact.split == "eval"] == [2, 4]


@pytest.mark.row("C57")
def test_a_missing_loader_is_told_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    trainer = learner(epochs=6)
    trainer.evaluated = False

    state = trainer.train()

    messages = [fact.message for fact in told(trainer, Warned)]
    assert messages == [
        f"There is no loader for {split}: it is left out." for split in ("eval", "test")
    ]
    assert state.step == 18 and told(trainer, Evaluated) == []


def test_a_trainer_may_say_what_is_measured() -> None:
    class Measured(Learner):
        def eval_batch(
            self, eidx: int, idx: int, global_step: int, batch_data: Any, params: Any, device: Any
        ) -> Any:
            assert not torch.is_grad_enabled() and not self.model.training
            return {"loss": cross_entropy(self.model(batch_data[0]), batch_data[1])}

    trainer = Measured(SimpleNamespace(epoch=1, train=classes(8)))
    trainer.recorder = MemoryRecorder()

    assert trainer.train().metrics.keys() == {"eval/loss", "test/loss"}


# ----------------------------------------------------------------------------------------------------------- callbacks

BATCH_BEGIN = ["batch_begin", "train_batch_begin", "iteration_begin"]
BATCH_END = ["batch_end", "train_batch_end", "iteration_end"]
"""Names of one moment each."""
ORDER = [
    *["train_begin", "epoch_begin", *BATCH_BEGIN, *BATCH_END, *BATCH_BEGIN, *BATCH_END],
    *["eval_begin", "eval_end", "test_begin", "test_end", "epoch_end", "train_end"],
]


class Noting(Callback):
    """Notes every moment under its name."""

    def __init__(self, notes: list[str], name: str = "", priority: int = 0) -> None:
        self.notes, self.name, self.priority = notes, name, priority


for _moment in Callback.MOMENTS:
    setattr(
        Noting,
        _moment,
        lambda self, trainer, moment=_moment: self.notes.append(f"{self.name}{moment[3:]}"),
    )


def noted(*callbacks: Callback, epochs: int = 1) -> Learner:
    trainer = learner(epochs, train=classes(8, 8))
    trainer.initial_callback = lambda: None  # type: ignore[method-assign]
    for callback in callbacks:
        callback.hook(trainer)
    EvalCallback(1, 1).hook(trainer)
    trainer.train()
    return trainer


@pytest.mark.row("C60")
def test_a_callback_is_called_at_the_begin_and_end_of_everything_in_order() -> None:
    notes: list[str] = []

    noted(Noting(notes, priority=1))

    # After the evaluation, which has the lower priority: it happens within the end of the epoch.
    assert notes == ORDER


@pytest.mark.row("C60")
def test_the_lower_priority_goes_first_whatever_was_hooked_first() -> None:
    notes: list[str] = []

    noted(Noting(notes, "late ", priority=5), Noting(notes, "early ", priority=-5))

    assert notes[:2] == ["early train_begin", "late train_begin"]
    assert notes[-2:] == ["early train_end", "late train_end"]


@pytest.mark.row("C60")
def test_a_callback_that_is_unhooked_or_switched_off_is_not_called() -> None:
    notes: list[str] = []

    class Unhooks(Callback):
        def on_epoch_end(self, trainer: Trainer) -> None:
            assert trainer.engine is not None
            if trainer.engine.state.epoch == 1:
                other.unhook()
                off.enabled = False
                self.unhook()
            else:
                notes.append("still there")

    other, off = Noting(notes, "other ", priority=-1), Noting(notes, "off ", priority=-1)
    trainer = noted(other, off, Unhooks(), epochs=2)

    assert notes.count("other epoch_begin") == notes.count("off epoch_begin") == 1
    assert (
        "other train_end" not in notes
        and "off train_end" not in notes
        and "still there" not in notes
    )
    assert trainer.callbacks[0] is off and len(trainer.callbacks) == 2


@pytest.mark.row("C60")
def test_a_callback_hooked_while_the_training_goes_on_is_called_from_then_on() -> None:
    notes: list[str] = []

    class Hooks(Callback):
        def on_epoch_begin(self, trainer: Trainer) -> None:
            if not notes:
                Noting(notes, priority=1).hook(trainer)

    noted(Hooks())

    assert notes == ORDER[2:]


@pytest.mark.row("C60")
def test_an_exception_of_a_callback_is_raised_with_its_name_and_the_others_hear_of_it() -> None:
    notes: list[str] = []

    class Fails(Callback):
        def on_batch_end(self, trainer: Trainer) -> None:
            raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        noted(Noting(notes, priority=-1), Fails())

    assert caught.value.__notes__ == ["in handler Fails.on_batch_end at step_end 1"]
    assert notes == ["train_begin", "epoch_begin", *BATCH_BEGIN, *BATCH_END, "exception"]


# ---------------------------------------------------------------------------------------------------- without a trainer


def test_any_class_with_train_batch_will_do_and_its_events_are_those_of_any_run() -> None:
    class Task:
        def __init__(self) -> None:
            self.model = net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

        def train_batch(
            self, eidx: int, idx: int, global_step: int, batch: Any, params: Any, device: Any
        ) -> Any:
            return {
                "loss": mse_loss(self.model(batch[0]), batch[1])
            }  # backward and update are left to the engine

    runs = Engine(Task(), loader(), epochs=1)
    events = heard(runs, Event.RUN_BEGIN, Event.STEP_END, Event.RUN_END)

    assert runs.run().step == 3
    assert events == ["run_begin", *["step_end"] * 3, "run_end"]


def test_one_task_may_be_trained_by_two_engines_one_after_the_other() -> None:
    class Task:
        backward: Any

        def __init__(self) -> None:
            self.model = net()
            self.backward = OptimizerStep(
                torch.optim.SGD(self.model.parameters(), lr=0.05), clip_norm=1.0
            )

        def train_batch(
            self, eidx: int, idx: int, global_step: int, batch: Any, params: Any, device: Any
        ) -> None:
            self.backward(mse_loss(self.model(batch[0]), batch[1]))

    task = Task()
    processes = []
    for _ in range(2):
        runs = Engine(task, loader(20, 8, accumulate=2), epochs=1)
        assert runs.run().step == 3
        processes.append(runs.process)

    assert processes[0] is not processes[1]
    assert processes[0].backward is processes[1].backward and processes[0].backward.clip_norm == 1.0


def test_a_batch_that_is_no_pair_asks_for_eval_batch() -> None:
    trainer = learner()
    trainer.initial()

    with pytest.raises(InputError, match="How Learner without eval_batch evaluates a batch"):
        evaluate(trainer.make_engine().process, [points(4).tensors[0]], split="eval")


def test_a_trainer_without_data_is_told_where_to_name_them() -> None:
    class Empty(Learner):
        def initial_trainer(self, params: Any) -> None:
            self.model = nn.Linear(1, 1)

    with pytest.raises(InputError, match="Empty has no data to train on") as caught:
        Empty(SimpleNamespace(epoch=1)).train()

    assert "regist_databundler" in caught.value.fix


@pytest.mark.parametrize("given", [{"eval_every": 0}, {"test_every": -1}])
def test_a_period_of_nothing_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        EvalCallback(**given)
