"""One line restores a run: the engine, whoever listens, and the place in the curves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.errors import CheckpointError
from assay.core.facts import Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Evaluate, Loader, OptimizerStep, Save, Saver, WarmupCosine
from assay.engine.loop.engine_state import capture_state
from engine.toys import Noisy, hard_net, loader, same_bits, supervised


def run_of(folder: Path, *, stop_at: int = 0, **given: Any) -> Engine:
    """Two epochs of three steps with all that resuming has to bring back."""
    model = hard_net()
    backward = OptimizerStep(
        torch.optim.AdamW(model.parameters(), lr=0.01), schedule=WarmupCosine(warmup_steps=2)
    )
    runs = Engine(
        supervised(model, backward=backward),
        Loader(Noisy(), batch_size=8, shuffle=True),
        epochs=2,
        recorder=MemoryRecorder(),
        handlers=[
            *Evaluate({"valid": loader(6, 4)}).handlers(),
            *Save(Saver(folder), every="1 step").handlers(),
        ],
        **given,
    )
    runs.on("step_end")(lambda: runs.state.step == stop_at and runs.stop("left", interrupts=True))
    return runs


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_resumed_engine_ends_as_the_uninterrupted_one(step: int, tmp_path: Path) -> None:
    whole = run_of(tmp_path / "whole")
    whole.run()
    run_of(tmp_path / "left", stop_at=step).run()
    resumed = run_of(tmp_path / "left")

    assert resumed.resume(Saver(tmp_path / "left")) == step
    resumed.run()

    assert same_bits(capture_state(resumed), capture_state(whole))


def test_an_engine_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    runs = run_of(tmp_path)

    assert runs.resume(Saver(tmp_path)) == 0
    assert runs.run().step == 6


def test_the_curves_go_back_to_the_step_that_is_resumed_and_what_is_later_is_set_aside(
    tmp_path: Path,
) -> None:
    run_of(tmp_path).run()
    resumed = run_of(tmp_path)
    memory = resumed.recorder
    assert isinstance(memory, MemoryRecorder)
    memory.points = [("train/loss", step, 1.0) for step in range(1, 7)]

    assert resumed.resume(Saver(tmp_path), 5) == 5

    assert [step for _, step, _ in memory.points] == [1, 2, 3, 4, 5]
    assert Saver(tmp_path).find().step == 5
    with pytest.raises(CheckpointError):
        resumed.resume(Saver(tmp_path), 6)


def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path) -> None:
    run_of(tmp_path, stop_at=4).run()
    (file,) = (tmp_path / "step-000000004").glob("model*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    resumed = run_of(tmp_path)

    assert resumed.resume(Saver(tmp_path)) == 3

    assert isinstance(resumed.recorder, MemoryRecorder)
    (warned,) = [fact for fact in resumed.recorder.facts if isinstance(fact, Warned)]
    assert warned.message.startswith("step-000000004 is no checkpoint: ")
    assert warned.message.endswith(" The run resumes from step 3.")


@pytest.mark.parametrize("where", ["engine", "loader", "both"])
def test_the_seed_is_given_once_and_holds_for_order_steps_and_evaluation(
    where: str, tmp_path: Path
) -> None:
    def trained(folder: str, seed: int) -> Engine:
        runs = run_of(tmp_path / folder, **({} if where == "loader" else {"seed": seed}))
        if where != "engine":
            runs = Engine(
                runs.process,
                Loader(Noisy(), batch_size=8, shuffle=True, seed=seed),
                epochs=2,
                **({"seed": seed} if where == "both" else {}),
            )
        runs.run()
        return runs

    one, same, other = trained("one", 3), trained("same", 3), trained("other", 4)

    assert (one.seed, other.seed) == (3, 4)
    assert same_bits(capture_state(one), capture_state(same))
    assert not same_bits(capture_state(one), capture_state(other))
    orders = [list(next(iter(each.source.tasks(0, 0)))[2]) for each in (one, same, other)]  # type: ignore[attr-defined]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] == list(
        next(iter(Loader(Noisy(), batch_size=8, shuffle=True, seed=3).tasks(0, 0)))[2]
    )


class Failing:
    """A metric that fails in the evaluations that it is told."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = set(numbers)
        self.seen = 0

    def reset(self) -> None:
        self.seen += 1

    def update(self, output: Any) -> None:
        if self.seen in self.numbers:
            raise ValueError("no such class")

    def value(self) -> float:
        return 1.0


class Stream:
    """Six batches an epoch, which nobody counts before."""

    def __iter__(self) -> Iterator[Any]:
        yield from loader(24, 4)


def evaluated(folder: Path, *failing: int, every: str = "1 epoch", kills_at: int = 0) -> Engine:
    """Four epochs of six steps; evaluations fail by their number, the process ends at a step."""
    runs = Engine(
        supervised(metrics={"acc": Failing(*failing)}),
        Stream(),
        steps=24,
        recorder=MemoryRecorder(),
        handlers=[
            *Evaluate({"valid": loader(6, 4), "test": loader(4)}).handlers(),
            *Save(Saver(folder), every=every, background=False).handlers(),
        ],
    )

    def kill() -> None:
        if runs.state.step == kills_at:
            raise KeyboardInterrupt  # which leaves no checkpoint, as a kill does

    runs.on("epoch_end", priority=-1000)(kill)
    return runs


def steps_of(name: str, *engines: Engine) -> list[int]:
    recorders = [runs.recorder for runs in engines]
    return [step for each in recorders for step, _ in each.curve(name)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_an_evaluation_that_failed_is_made_by_the_resumed_run_with_all_its_handlers(
    number: int, tmp_path: Path
) -> None:
    whole = evaluated(tmp_path / "whole")
    whole.run()
    failed = evaluated(tmp_path / "failed", number)
    with pytest.raises(ValueError, match="no such class"):
        failed.run()
    resumed = evaluated(tmp_path / "failed")

    step = 6 * ((number - 1) // 2)
    assert resumed.resume(Saver(tmp_path / "failed")) == step
    resumed.run()

    for split in ("valid", "test"):
        assert steps_of(f"{split}/acc", resumed) == [*range(step + 6, 25, 6)]
    assert steps_of("train/loss", resumed) == [*range(step + 1, 25)]
    assert same_bits(capture_state(resumed), capture_state(whole))


@pytest.mark.parametrize("step", [12, 18, 24])
@pytest.mark.parametrize("every", ["1 step", "3 steps"])
def test_data_without_a_length_resume_at_the_end_of_an_epoch_as_if_nothing_had_been(
    step: int, every: str, tmp_path: Path
) -> None:
    whole = evaluated(tmp_path / "whole", every=every)
    whole.run()
    killed = evaluated(tmp_path / "killed", every=every, kills_at=step)
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    resumed = evaluated(tmp_path / "killed", every=every)

    assert resumed.resume(Saver(tmp_path / "killed")) == step
    resumed.run()

    assert (resumed.state.epoch, resumed.state.epoch_step) == (4, 0)
    assert same_bits(capture_state(resumed), capture_state(whole))
    assert steps_of("valid/acc", killed, resumed) == [6, 12, 18, 24]
