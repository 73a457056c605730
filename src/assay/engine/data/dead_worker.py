"""Diagnosis of dead worker processes of torch's DataLoader."""

from __future__ import annotations

import re
import time
import traceback

from assay.core.errors import AssayError

_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\)")
_SIGNAL = re.compile(r"by signal: (?P<name>[\w ]+)")
_PATIENCE_S = 0.5


class WorkerDiedError(AssayError):
    """A process that loads data was ended by something else than its own code."""


def died(error: BaseException) -> WorkerDiedError | None:
    """Return the error to raise for a dead worker of torch's DataLoader, else None."""
    if isinstance(error, OSError | EOFError) and _is_of_loader(error):
        # Its pipe broke before torch heard of its end, which raises wherever it is heard of: let
        # that be here.
        try:
            time.sleep(_PATIENCE_S)
        except RuntimeError as heard:
            error = heard
        else:
            return _died("", "")
    found = _DIED.search(str(error)) if isinstance(error, RuntimeError) else None
    if found is None:
        return None
    signal = _SIGNAL.search(f"{error} {error.__cause__} {error.__context__}")
    return _died(found["pids"].strip(), signal["name"].strip() if signal else "")


def _died(pids: str, signal: str) -> WorkerDiedError:
    which = f" (pid {pids})" if pids else ""
    how = f" by a signal ({signal})" if signal else ""
    return WorkerDiedError(
        f"A process that loads data{which} was ended{how}.",
        fix=(
            "Mostly memory ran out: fewer workers, smaller batches, or a larger /dev/shm of the "
            "container."
        ),
    )


def _is_of_loader(error: BaseException) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(
        frame.f_globals.get("__name__", "").startswith("torch.utils.data") for frame in frames
    )
