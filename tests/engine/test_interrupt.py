"""Signals: the first lets the step end, the second ends at once, and afterwards they mean what they meant before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.ports import MemoryRecorder
from assay.engine import Backward, Engine, Evaluate, Loader, Save, Saver, WarmupCosine
from assay.engine.checkpoint.folder import load
from assay.engine.handlers.interrupt import stopping_on_signals
from assay.engine.handlers.save import capture, restore
from engine.toys import Noisy, engine, hard_net, heard, loader, same_bits, supervised

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """A test that fails must not leave the test run deaf to Ctrl-C."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sends(number: signal.Signals) -> Callable[[], None]:
    """What a user or a scheduler does; it is heard before the next line of Python."""
    return lambda: signal.raise_signal(number)


def saved_run(folder: Path, **given: Any) -> Engine:
    """Two epochs of three steps with all that resuming has to bring back."""
    model = hard_net()
    backward = Backward(torch.optim.AdamW(model.parameters(), lr=0.01), schedule=WarmupCosine(warmup_steps=2))
    runs = engine(
        supervised(model, backward=backward),
        Loader(Noisy(), batch_size=8, shuffle=True),
        recorder=MemoryRecorder(),
        **given,
    )
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())
    runs.bus.extend(Save(Saver(folder), best=("valid/loss", "min"), evaluate_every="1 epoch").handlers())
    return runs


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("event", ["step_begin", "backward_begin", "backward_end", "step_end"])
def test_the_first_signal_lets_the_step_end_and_saves_it(number: signal.Signals, event: str, tmp_path: Path) -> None:
    runs = saved_run(tmp_path)
    told = heard(runs)
    steps: list[int] = []

    @runs.on(event)
    def send_in_the_second_step() -> None:
        steps.append(runs.state.step)
        if len(steps) == 2:
            signal.raise_signal(number)

    with stopping_on_signals(runs) as caught:
        state = runs.run()

    assert (state.step, state.stop_reason) == (2, number.name)
    assert (caught.signal, caught.exit_code) == (number, 128 + number)
    assert told[-3:] == ["run_end", "checkpoint_begin", "checkpoint_end"]
    assert [manifest.step for manifest in Saver(tmp_path).complete()[0]] == [2]


def test_without_a_signal_nothing_was_caught() -> None:
    runs = engine()

    with stopping_on_signals(runs) as caught:
        state = runs.run()

    assert (caught.signal, caught.exit_code, state.stop_reason, state.step) == (None, 0, "", 6)


def test_a_signal_before_the_first_step_leaves_a_run_that_can_be_begun_later(tmp_path: Path) -> None:
    runs = saved_run(tmp_path)
    runs.on("run_begin")(sends(signal.SIGTERM))

    with stopping_on_signals(runs):
        state = runs.run()

    assert state.step == 0
    assert Saver(tmp_path).find().step == 0


def test_a_signal_during_an_evaluation_lets_it_end(tmp_path: Path) -> None:
    runs = saved_run(tmp_path)
    runs.on("eval_step_begin")(sends(signal.SIGINT))
    told = heard(runs)

    with pytest.raises(KeyboardInterrupt), stopping_on_signals(runs):
        runs.run()  # the second batch of the evaluation sends the second signal
    assert told[-2:] == ["eval_step_begin", "exception"]

    again = saved_run(tmp_path / "again")
    again.on("eval_begin")(sends(signal.SIGINT))
    with stopping_on_signals(again):
        state = again.run()
    assert (state.step, state.metrics.keys()) == (3, {"valid/loss"})


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_ends_at_once(first: signal.Signals, second: signal.Signals, tmp_path: Path) -> None:
    runs = saved_run(tmp_path)
    told = heard(runs)

    @runs.on("backward_end", every=2)
    def interrupt() -> None:
        signal.raise_signal(first)
        signal.raise_signal(second)

    with pytest.raises(KeyboardInterrupt), stopping_on_signals(runs) as caught:
        runs.run()

    assert told[-2:] == ["backward_end", "exception"]
    assert caught.signal == first
    assert isinstance(runs.state.error, KeyboardInterrupt)
    assert Saver(tmp_path).complete()[0] == []


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_a_run_that_goes_on_after_a_signal_is_the_uninterrupted_one(step: int, tmp_path: Path) -> None:
    whole = saved_run(tmp_path / "whole")
    whole.run()
    stopped = saved_run(tmp_path / "stopped")
    stopped.on("step_end")(lambda state: signal.raise_signal(signal.SIGTERM) if state.step == step else None)
    with stopping_on_signals(stopped):
        stopped.run()
    resumed = saved_run(tmp_path / "stopped")
    restore(resumed, load(tmp_path / "stopped" / f"step-{step:09d}"))

    resumed.run()

    assert stopped.state.step == step
    assert same_bits(capture(resumed), capture(whole))
    points = stopped.recorder.points + resumed.recorder.points  # type: ignore[attr-defined]
    assert points == whole.recorder.points  # type: ignore[attr-defined]


@pytest.mark.parametrize("ending", ["end", "error", "signal"])
def test_signals_mean_afterwards_what_they_meant_before(ending: str) -> None:
    def own(number: int, frame: object) -> None: ...

    signal.signal(signal.SIGINT, own)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runs = engine()
    if ending == "error":
        runs.on("step_end")(lambda: 1 / 0)
    if ending == "signal":
        runs.on("step_end", every=1)(lambda: runs.state.step == 1 and signal.raise_signal(signal.SIGTERM))

    try:
        with stopping_on_signals(runs):
            assert signal.getsignal(signal.SIGINT) not in (own, signal.SIG_IGN)
            runs.run()
    except ZeroDivisionError:
        assert ending == "error"

    assert signal.getsignal(signal.SIGINT) is own
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_handler_that_was_not_set_from_python_becomes_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real = signal.signal

    def foreign(number: int, handler: Any) -> Any:
        """As `signal.signal` answers when C code had set the handler before."""
        if handler is None:
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        real(number, handler)

    monkeypatch.setattr(signal, "signal", foreign)
    with stopping_on_signals(engine()):
        pass
    monkeypatch.undo()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_in_another_thread_a_run_is_left_to_whoever_handles_signals() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[Any] = []

    def train() -> None:
        runs = engine()
        with stopping_on_signals(runs) as caught:
            seen.append([signal.getsignal(number) for number in SIGNALS])
            seen.append((runs.run().step, caught.exit_code))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()

    assert seen == [before, (6, 0)]
