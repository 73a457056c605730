"""Failure class of a job, from the end of its OS process and the last lines it printed."""

from __future__ import annotations

import re
import signal

from assay.core.errors import InputError
from assay.core.job import FailureClass

_LOADING = ("while loading ", "in loader worker ")
"""Beginnings of the notes that the loader adds to an error of a data set."""
_PATTERNS: tuple[tuple[FailureClass, str], ...] = (
    ("out-of-memory", r"out of memory|OutOfMemoryError|\bMemoryError\b"),
    ("nan", r"NonFiniteError|is not finite|non-finite"),
    ("data", rf"\bWorker(Died)?Error\b|^\s*({'|'.join(_LOADING)})"),
)
_EXCEPTIONS: tuple[tuple[FailureClass, frozenset[str]], ...] = (
    ("out-of-memory", frozenset({"OutOfMemoryError", "MemoryError"})),
    ("nan", frozenset({"NonFiniteError"})),
    ("data", frozenset({"WorkerDiedError", "WorkerError"})),
)
_PREEMPTING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def classify(exit_code: int | None, signal_number: int, last_lines: str) -> FailureClass:
    """Return the class of a failed attempt.

    A signal decides first, then the error that was printed, then the exit code.

    >>> classify(None, 9, ""), classify(2, 0, "error: ..."), classify(3, 0, "")
    ('killed', 'config', 'exception')
    """
    if signal_number in _PREEMPTING:
        return "preempted"
    if signal_number:
        return "killed"
    if exit_code is not None and exit_code - 128 in _PREEMPTING:
        return "preempted"
    for failure, pattern in _PATTERNS:
        if re.search(pattern, last_lines, re.IGNORECASE | re.MULTILINE):
            return failure
    return "config" if exit_code == InputError.exit_code else "exception"


def failure_of(error: BaseException) -> FailureClass:
    """Return the class of a failure from the exception that ended a run.

    Exceptions of the engine are known by name: nothing here may import torch.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    for failure, known in _EXCEPTIONS:
        if names & known:
            return failure
    if any(note.startswith(_LOADING) for note in getattr(error, "__notes__", ())):
        return "data"
    return "config" if isinstance(error, InputError) else "exception"


def describe_end(exit_code: int | None, signal_number: int) -> str:
    """Return the end of an OS process in words: `killed by SIGKILL`, `exit code 3`."""
    if signal_number:
        try:
            name = signal.Signals(signal_number).name
        except ValueError:
            name = f"signal {signal_number}"
        return f"killed by {name}"
    return f"exit code {exit_code}"
