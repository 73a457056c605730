"""Frames that an error holds, with the variables of the calls that led to it."""

from __future__ import annotations

import contextlib
import gc
import inspect
import traceback
from types import FrameType


def let_go(error: BaseException | None) -> None:
    """Free what the run held, the memory of its device above all, before the next one needs it."""
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        for frame in frames[
            1:
        ]:  # left by the error, generators among them; the first is where it was caught
            _clear(frame)
        for frame in frames:
            _forget_variables(frame)
        error = error.__cause__ or error.__context__
    gc.collect()


def _forget_variables(frame: FrameType | None) -> None:
    """Clear the variables of the calls that led to an error; the model is among them.

    The lines of its traceback stay.
    """
    while frame is not None:
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # one that waits would be ended
            _clear(frame)
        frame = frame.f_back


def _clear(frame: FrameType) -> None:
    with contextlib.suppress(RuntimeError):  # still running
        frame.clear()
