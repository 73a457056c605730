"""Ends of the ranks of one machine: how each ended, and what it printed."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from assay.core.signals import is_crash

JOB_PREFIX = "assay-ranks-"
"""Beginning of the names by which torch's launcher knows the ranks started here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """Unexpected end of a rank."""

    rank: int
    pid: int
    how: str


def read_output(folder: Path, rank: int) -> str:
    """Return the output of a rank in `folder`."""
    files = sorted(folder.glob(f"*/attempt_*/{rank}/std*.log"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def describe_exit(code: int) -> str:
    """Say how a process ended that reported nothing, from its exit code; -N is signal N."""
    if code >= 0:
        return f"ended with exit code {code}, without a word"
    name = signal.Signals(-code).name
    return f"crashed ({name})" if is_crash(-code) else f"was killed by {name}"
