"""Signals: the first lets the step end, the second ends at once; handlers are restored."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.ports import MemoryRecorder
from assay.core.signals import Terminated, stopping
from assay.core.stop import Stop
from assay.engine import Engine, Evaluate, Loader, OptimizerStep, Save, Saver, WarmupCosine
from assay.engine.checkpoint.folder import load_parts
from assay.engine.loop.engine_state import capture_state, restore
from engine.toys import Noisy, engine, hard_net, heard, loader, same_bits, supervised

SIGNALS = (signal.SIGINT, signal.SIGTERM)
pytestmark = pytest.mark.usefixtures("signals_as_they_were")


def sends(number: signal.Signals) -> Callable[[], None]:
    """What a user or a scheduler does; it is heard before the next line of Python."""
    return lambda: signal.raise_signal(number)


def saved_run(folder: Path, **given: Any) -> Engine:
    """Two epochs of three steps with all that resuming has to bring back."""
    model = hard_net()
    backward = OptimizerStep(
        torch.optim.AdamW(model.parameters(), lr=0.01), schedule=WarmupCosine(warmup_steps=2)
    )
    runs = engine(
        supervised(model, backward=backward),
        Loader(Noisy(), batch_size=8, shuffle=True),
        recorder=MemoryRecorder(),
        **given,
    )
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())
    runs.bus.extend(Save(Saver(folder), best=("valid/loss", "min")).handlers())
    return runs


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("event", ["step_begin", "backward_begin", "backward_end", "step_end"])
def test_the_first_signal_lets_the_step_end_and_saves_it(
    number: signal.Signals, event: str, tmp_path: Path
) -> None:
    stop = Stop()
    runs = saved_run(tmp_path, stop=stop)
    told = heard(runs)
    steps: list[int] = []

    @runs.on(event)
    def send_in_the_second_step() -> None:
        steps.append(runs.state.step)
        if len(steps) == 2:
            signal.raise_signal(number)

    with stopping(stop) as signals:
        state = runs.run()

    assert (state.step, state.stop.reason) == (2, number.name)
    assert (stop.interrupts, stop.signal, signals.heard) == (True, number, [number])
    assert told[-3:] == ["run_end", "checkpoint_begin", "checkpoint_end"]
    assert [manifest.step for manifest in Saver(tmp_path).complete()[0]] == [2]


def test_without_a_signal_nothing_was_caught() -> None:
    stop = Stop()

    with stopping(stop) as signals:
        state = engine(stop=stop).run()

    assert (signals.heard, stop.signal, stop.reason, stop.interrupts, state.step) == (
        [],
        0,
        "",
        False,
        6,
    )


def test_a_signal_before_the_first_step_leaves_a_run_that_can_be_begun_later(
    tmp_path: Path,
) -> None:
    runs = saved_run(tmp_path)
    runs.on("run_begin")(sends(signal.SIGTERM))

    with pytest.raises(Terminated):
        runs.run()

    assert runs.state.step == 0
    assert Saver(tmp_path).find().step == 0


def test_a_signal_during_an_evaluation_lets_it_end(tmp_path: Path) -> None:
    runs = saved_run(tmp_path)
    runs.on("eval_step_begin")(sends(signal.SIGINT))
    told = heard(runs)

    with pytest.raises(KeyboardInterrupt):
        runs.run()  # the second batch of the evaluation sends the second signal
    assert told[-2:] == ["eval_step_begin", "exception"]

    again = saved_run(tmp_path / "again")
    again.on("eval_begin")(sends(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        again.run()
    assert (again.state.step, again.state.metrics.keys()) == (3, {"valid/loss"})


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_ends_at_once(
    first: signal.Signals, second: signal.Signals, tmp_path: Path
) -> None:
    runs = saved_run(tmp_path)
    told = heard(runs)

    @runs.on("backward_end", every=2)
    def interrupt() -> None:
        signal.raise_signal(first)
        signal.raise_signal(second)

    with pytest.raises(KeyboardInterrupt if second == signal.SIGINT else Terminated):
        runs.run()

    assert told[-2:] == ["backward_end", "exception"]
    assert runs.state.stop.signal == first
    assert isinstance(runs.state.error, KeyboardInterrupt | Terminated)
    assert Saver(tmp_path).complete()[0] == []


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_a_run_that_goes_on_after_a_signal_is_the_uninterrupted_one(
    step: int, tmp_path: Path
) -> None:
    whole = saved_run(tmp_path / "whole")
    whole.run()
    stopped = saved_run(tmp_path / "stopped")
    stopped.on("step_end")(
        lambda state: signal.raise_signal(signal.SIGTERM) if state.step == step else None
    )
    with pytest.raises(Terminated):
        stopped.run()
    resumed = saved_run(tmp_path / "stopped")
    restore(resumed, load_parts(tmp_path / "stopped" / f"step-{step:09d}"))

    resumed.run()

    assert stopped.state.step == step
    assert same_bits(capture_state(resumed), capture_state(whole))
    points = stopped.recorder.points + resumed.recorder.points  # type: ignore[attr-defined]
    assert points == whole.recorder.points  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_last_step_changes_no_end_and_is_raised_when_it_is_over(
    number: signal.Signals, tmp_path: Path
) -> None:
    runs = saved_run(tmp_path)
    runs.on("run_end", priority=-5)(sends(number))

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Terminated):
        runs.run()

    assert (runs.state.step, runs.state.stop.interrupts) == (6, False)
    assert (tmp_path / "final.json").exists()


def test_a_loop_by_hand_ends_after_the_step_and_saves_it_then_raises_the_signal(
    tmp_path: Path,
) -> None:
    runs = saved_run(tmp_path)

    with pytest.raises(Terminated):
        for inputs, targets in runs:
            if runs.state.step == 1:
                signal.raise_signal(signal.SIGTERM)
            runs.backward(torch.nn.functional.mse_loss(runs.process.model(inputs), targets))

    assert runs.state.step == 2
    assert Saver(tmp_path).find().step == 2
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_engine_leaves_signals_alone_that_somebody_else_handles() -> None:
    mine: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: mine.append(number))
    runs = engine()
    runs.on("step_end")(lambda: runs.state.step == 2 and signal.raise_signal(signal.SIGTERM))

    assert runs.run().step == 6
    assert mine == [signal.SIGTERM]


def test_an_early_stop_before_a_signal_is_an_interruption_all_the_same(tmp_path: Path) -> None:
    runs = saved_run(tmp_path)

    @runs.on("step_end")
    def stop_and_interrupt() -> None:
        runs.stop("enough")
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Terminated):
        runs.run()

    assert (runs.state.stop.reason, runs.state.stop.interrupts) == ("SIGTERM", True)
    assert not (tmp_path / "final.json").exists()


def test_an_engine_that_is_run_again_can_be_stopped_again() -> None:
    runs = engine(steps=2)
    runs.run()
    runs.state.max_steps = 6
    runs.on("step_end")(lambda: runs.state.step == 4 and runs.stop("enough"))

    assert (runs.run().step, runs.state.stop.reason) == (4, "enough")
