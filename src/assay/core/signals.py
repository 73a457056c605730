"""Owner of SIGINT, SIGTERM, SIGHUP and SIGUSR1: no other module sets what they do to a run.

SIGUSR1 is what scripts for Slurm ask for before the time is up: `--signal=USR1@90`. SIGHUP says
that the terminal is gone; `nohup` has it ignored, and then it stays ignored.

Three things can become of a signal. Inside `stopping` the first one asks a run to end after its
step, and the second is obeyed. Inside `obeying` the first one is obeyed: it becomes an exception,
KeyboardInterrupt or `Terminated`, so that what is open can be closed. `answering` leaves the answer
to its caller, for a launcher that passes signals on. While `Signals.holding` is open nothing is
obeyed, for an end that must be written whole.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the helper of the capture, which begins with each run, has no use for it
    from assay.core.stop import Stop

_HANGUP = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
_TIME_IS_UP = getattr(signal, "SIGUSR1", signal.SIGTERM)
NUMBERS = tuple(dict.fromkeys((signal.SIGINT, signal.SIGTERM, _HANGUP, _TIME_IS_UP)))
_CRASHES = {
    getattr(signal, name, None)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP")
}
HELD_LIMIT = 3
"""So many signals in a row are held; the next one ends the process, whatever it is writing."""


class Terminated(SystemExit):
    """Any of them but SIGINT, obeyed. Unlike SystemExit, it is no end that the program chose."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.number = number


Obeyed = KeyboardInterrupt | Terminated
"""Exception of each signal. KeyboardInterrupt, not our own: only it makes Python die by SIGINT."""


class Signals:
    """Signals that this OS process has heard inside one of the blocks below, the oldest first."""

    def __init__(self, answer: Callable[[Signals, int], object], *, echo_s: float = 0.0) -> None:
        self.heard: list[int] = []
        self._answer = answer
        self._echo_s = echo_s
        self._newest = (0, 0.0)
        self._holders = 0
        self._held = 0

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let no signal be obeyed inside, so that what is written there becomes whole."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    def hear(self, number: int, _frame: FrameType | None) -> None:
        """Answer a signal; the handler that `signal.signal` is given."""
        (newest, at_s), now = self._newest, time.monotonic()
        self._newest = number, now
        if number == newest and now - at_s < self._echo_s:
            return
        if number == _HANGUP and number in self.heard:
            return  # the kernel and the shell both say that the terminal is gone
        self.heard.append(number)
        self._answer(self, number)

    def obey(self, number: int) -> None:
        """Raise the exception of a signal, unless it is held.

        The operating system ends a process that does not end.
        """
        if not self._holders:
            raise exception_for(number)
        self._held += 1
        if self._held > HELD_LIMIT:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


last_obeyed: Obeyed | None = None
"""Newest exception of a signal: nothing else says why a program ended by SystemExit."""


def exception_for(number: int) -> Obeyed:
    """Return the exception to raise for a signal."""
    global last_obeyed
    last_obeyed = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
    return last_obeyed


def number_of(error: Obeyed) -> int:
    """Return the signal that became this exception."""
    return error.number if isinstance(error, Terminated) else signal.SIGINT


def heard_line(number: int) -> str:
    """Say what becomes of the first signal of a run."""
    name = signal.Signals(number).name
    return f"{name}: stopping after this step, and saving; once more ends it at once"


NO_SIGNALS = Signals(lambda signals, number: None)
"""Of a block that answers no signals: it never hears one."""


@contextmanager
def stopping(
    stop: Stop,
    *,
    say: Callable[[str], object] | None = None,
    polite: bool = False,
    echo_s: float = 0.0,
) -> Iterator[Signals]:
    """Inside, the first signal asks `stop` to interrupt the run, and every further one is obeyed.

    `say` tells the person that the signal was heard: a step may take minutes. `polite` leaves alone
    a signal that somebody else handles or ignores. The same signal again within `echo_s` counts
    once: a scheduler that signals all processes of a job reaches a rank itself and through its
    launcher. Outside of the main thread all signals stay as they are.
    """

    def answer(signals: Signals, number: int) -> None:
        if len(signals.heard) > 1:
            signals.obey(number)
            return
        stop.ask(signal.Signals(number).name, interrupts=True, signal=number)
        if say is not None:
            # It came while something was being written, or because the terminal is gone.
            with suppress(RuntimeError, OSError):
                say(heard_line(number))

    with answering(answer, polite=polite, echo_s=echo_s) as signals:
        yield signals


@contextmanager
def obeying(*, echo_s: float = 0.0) -> Iterator[Signals]:
    """Inside, every signal is obeyed at once, as an exception."""
    with answering(Signals.obey, echo_s=echo_s) as signals:
        yield signals


@contextmanager
def answering(
    answer: Callable[[Signals, int], object], *, polite: bool = False, echo_s: float = 0.0
) -> Iterator[Signals]:
    """Call `answer` within this block with the signals heard so far and the newest one's number."""
    signals = Signals(answer, echo_s=echo_s)
    if not _is_main_thread():
        yield signals
        return
    before: dict[int, Any] = {}
    for number in NUMBERS:
        is_ignored = number == _HANGUP and signal.getsignal(number) is signal.SIG_IGN  # by nohup
        if not is_ignored and (not polite or _is_free(number)):
            before[number] = signal.signal(number, signals.hear)
    try:
        yield signals
    finally:
        # A generator may end in another thread, which may not set handlers.
        for each, handler in before.items() if _is_main_thread() else ():
            # None stands for a handler that was not set from Python.
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def obey_sigterm() -> None:
    """Let all but SIGINT raise exceptions, unless somebody else handles or ignores them.

    SIGINT does so anyway. The second one ends the process at once.
    """
    for number in NUMBERS:
        if _is_main_thread() and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _obey_once)


def restore_sigterm() -> None:
    """Take back `obey_sigterm`."""
    for number in NUMBERS:
        if _is_main_thread() and signal.getsignal(number) is _obey_once:
            signal.signal(number, signal.SIG_DFL)


def is_crash(number: int) -> bool:
    """Return whether a process gets this signal for a fault of its own, and nobody sends it."""
    return number in _CRASHES


def ignore() -> None:
    """Ignore the signals that a terminal or a scheduler sends to a whole process group.

    For a helper that ends with its parent: the step, or the output, that the parent finishes may
    need it.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1"):
        if hasattr(signal, name):  # Windows has the first two
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _obey_once(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise exception_for(number)


def _is_main_thread() -> bool:
    """Return whether Python lets this thread say what a signal does."""
    return threading.current_thread() is threading.main_thread()


def _is_free(number: int) -> bool:
    """Return whether a signal has the handler of Python or of `obey_sigterm`, and no other."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _obey_once)
