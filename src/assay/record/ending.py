"""End of a run: the status, reason and traceback that an exception stands for."""

from __future__ import annotations

import signal

from assay.core.facts import EndStatus
from assay.core.signals import Obeyed, number_of


def ending(error: BaseException | None) -> tuple[EndStatus, str, str]:
    """Return status, reason and traceback of a run that ended with `error`."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "finished", "", ""
    if isinstance(error, Obeyed):
        return "stopped", signal.Signals(number_of(error)).name, ""
    # Imported only for a failure: every script would pay for it at its start.
    from assay.record.tracebacks import shorten

    reason = type(error).__name__
    first_line = str(error).strip().split("\n", 1)[0]
    first_line = first_line.removeprefix("error: ")  # written before each mistake of a config
    if first_line:
        reason = f"{reason}: {first_line}"
    return "failed", reason, shorten(error)
