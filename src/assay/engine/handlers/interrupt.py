"""Ctrl-C and SIGTERM: the step is finished, the run saved, and only then it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from assay.engine.engine import Engine


class Interrupts:
    """What was caught: the first signal asks the engine to stop, a second one is obeyed at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell says it; 0 when there was none."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def stopping_on_signals(engine: Engine, *, say: Callable[[str], object] | None = None) -> Iterator[Interrupts]:
    """SIGINT and SIGTERM stop `engine` after its step. Outside the main thread signals stay as they are.

    `say` tells the person that they were heard: a step may take minutes.
    """
    caught = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if caught.signal is not None:
            raise KeyboardInterrupt
        caught.signal = number
        name = signal.Signals(number).name
        engine.stop(name, hurry=True)
        if say is not None:
            with suppress(RuntimeError):  # it came while something was being written
                say(f"{name}: stopping after this step, and saving; once more ends it at once")

    before: dict[int, Any] = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set from Python
