"""Ctrl-C and SIGTERM: the step is finished, the run saved, and only then it ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
def stopping_on_signals(engine: Engine) -> Iterator[Interrupts]:
    """SIGINT and SIGTERM stop `engine` after its step. Outside the main thread signals stay as they are."""
    caught = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if caught.signal is not None:
            raise KeyboardInterrupt
        caught.signal = number
        engine.stop(signal.Signals(number).name, hurry=True)

    before: dict[int, Any] = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set from Python
