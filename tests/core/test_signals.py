"""Signals have one owner: what becomes of them inside its blocks, and what they mean afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from assay.core.signals import (
    HELD_LIMIT,
    Signals,
    Terminated,
    answering,
    number_of,
    obey_sigterm,
    obeying,
    restore_sigterm,
    stopping,
)
from assay.core.stop import Stop

SRC = Path(__file__).resolve().parents[2] / "src"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
pytestmark = pytest.mark.usefixtures("signals_as_they_were")
EXCEPTIONS = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
    signal.SIGHUP: Terminated,
    signal.SIGUSR1: Terminated,
}


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in product(SIGNALS, SIGNALS) if pair != (signal.SIGHUP, signal.SIGHUP)],
)
def test_the_first_signal_asks_the_second_is_obeyed(
    first: signal.Signals, second: signal.Signals
) -> None:
    stop, said = Stop(), list[str]()

    with pytest.raises(EXCEPTIONS[second]), stopping(stop, say=said.append) as signals:
        signal.raise_signal(first)
        assert (stop.reason, stop.interrupts, stop.signal) == (first.name, True, first)
        signal.raise_signal(second)

    assert signals.heard == [first, second]
    assert said == [
        f"{first.name}: stopping after this step, and saving; once more ends it at once"
    ]


@pytest.mark.parametrize("number", SIGNALS)
def test_where_signals_are_obeyed_the_first_one_is_raised(number: signal.Signals) -> None:
    with pytest.raises(EXCEPTIONS[number]) as raised, obeying():
        signal.raise_signal(number)

    assert number_of(raised.value) == number


@pytest.mark.parametrize("block", [lambda: stopping(Stop()), obeying])
def test_what_is_held_is_heard_and_raises_nothing(block: Callable[[], Any]) -> None:
    with block() as signals, signals.holding():
        for number in SIGNALS[-HELD_LIMIT:]:
            signal.raise_signal(number)

    assert signals.heard == list(SIGNALS[-HELD_LIMIT:])


def test_an_end_that_never_comes_is_ended_by_the_operating_system() -> None:
    program = f"""
import signal
from assay.core.signals import obeying
with obeying() as signals, signals.holding():
    for _ in range({HELD_LIMIT}):
        signal.raise_signal(signal.SIGTERM)
    print("held", flush=True)
    signal.raise_signal(signal.SIGTERM)
    print("never said")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "held\n")


def test_the_echo_of_a_signal_counts_once_and_another_signal_does_not() -> None:
    heard: list[int] = []

    with answering(lambda signals, number: heard.append(number), echo_s=60.0):
        for number in (
            signal.SIGTERM,
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGINT,
            signal.SIGTERM,
        ):
            signal.raise_signal(number)

    assert heard == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("ending", ["end", "error", "signal"])
def test_signals_mean_afterwards_what_they_meant_before(ending: str) -> None:
    def own(number: int, frame: object) -> None: ...

    signal.signal(signal.SIGINT, own)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    try:
        with stopping(Stop()):
            assert signal.getsignal(signal.SIGINT) not in (own, signal.SIG_IGN)
            if ending == "error":
                raise ZeroDivisionError
            if ending == "signal":
                signal.raise_signal(signal.SIGTERM)
    except ZeroDivisionError:
        assert ending == "error"

    assert signal.getsignal(signal.SIGINT) is own
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_polite_block_leaves_alone_what_somebody_else_handles() -> None:
    def own(number: int, frame: object) -> None: ...

    signal.signal(signal.SIGTERM, own)

    with stopping(Stop(), polite=True) as signals:
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) == signals.hear


def test_a_handler_that_was_not_set_from_python_becomes_the_default_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = signal.signal

    def foreign(number: int, handler: Any) -> Any:
        """As `signal.signal` answers when C code had set the handler before."""
        if handler is None:
            raise TypeError(
                "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
            )
        real(number, handler)

    monkeypatch.setattr(signal, "signal", foreign)
    with stopping(Stop()):
        pass
    monkeypatch.undo()

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_in_another_thread_signals_stay_with_whoever_handles_them() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[Any] = []

    def block() -> None:
        with stopping(Stop()):
            seen.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()

    assert seen == [before]


def test_a_script_obeys_its_first_sigterm_and_dies_of_its_second() -> None:
    obey_sigterm()

    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    obey_sigterm()
    restore_sigterm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_request_is_in_force_at_once_or_once_all_ranks_agree() -> None:
    alone, shared = Stop(), Stop()
    shared.is_shared = True

    for stop in (alone, shared):
        stop.ask("SIGTERM", interrupts=True, signal=15)

    assert (alone.reason, alone.interrupts, alone.signal) == ("SIGTERM", True, 15)
    assert (shared.reason, shared.interrupts, shared.signal) == ("", False, 0)
    shared.agree(shared.asked)
    assert (shared.reason, shared.interrupts, shared.signal) == ("SIGTERM", True, 15)


def test_the_first_reason_counts_and_an_interruption_outweighs_an_own_end() -> None:
    stop = Stop()

    stop.ask("early stop")
    stop.ask("enough")
    assert (stop.reason, stop.interrupts) == ("early stop", False)
    stop.ask("SIGINT", interrupts=True, signal=2)
    stop.ask("SIGTERM", interrupts=True, signal=15)
    assert (stop.reason, stop.interrupts, stop.signal) == ("SIGINT", True, 2)


def test_an_end_that_has_begun_stays_what_it_is() -> None:
    stop = Stop()
    stop.settle()

    stop.ask("SIGTERM", interrupts=True, signal=15)

    assert (stop.reason, stop.interrupts, stop.signal) == ("", False, 0)
    assert stop.asked.signal == 15


def test_signals_that_nobody_answers_are_only_heard() -> None:
    signals = Signals(lambda signals, number: None)

    signals.hear(signal.SIGINT, None)

    assert signals.heard == [signal.SIGINT]


def test_a_closed_terminal_asks_once_however_often_it_is_told() -> None:
    stop = Stop()

    with stopping(stop) as signals:
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)

    assert (stop.reason, stop.interrupts, signals.heard) == ("SIGHUP", True, [signal.SIGHUP])


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with stopping(stop) as signals:
            signal.raise_signal(signal.SIGHUP)
        assert signals.heard == [] and not stop.interrupts
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_line_that_cannot_be_shown_stops_no_answer() -> None:
    def say(line: str) -> None:
        raise OSError(5, "Input/output error")

    stop = Stop()
    with stopping(stop, say=say):
        signal.raise_signal(signal.SIGHUP)

    assert stop.reason == "SIGHUP"
