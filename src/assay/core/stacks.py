"""Stacks of an OS process that no longer responds, written by the process itself on a signal.

The handler is C code of `faulthandler`: it runs wherever the main thread is, in a collective or in
another C function that keeps Python from running.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from assay.core.regular_file import read_part

SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2 if hasattr(signal, "SIGUSR2") else 0)
"""Asks for the stacks; no scheduler and no launcher sends it."""

_PATIENCE_S = 1.0
_QUIET_S = 0.05
_MOST_BYTES = 16 << 20


@contextmanager
def offering_stacks(path: Path) -> Iterator[None]:
    """Inside, write the stacks of all threads to `path` on each request; then delete the file."""
    path.unlink(missing_ok=True)
    with path.open("x", encoding="utf-8") as file:
        if SIGNAL:
            faulthandler.register(SIGNAL, file=file, all_threads=True)
        try:
            yield
        finally:
            if SIGNAL:
                faulthandler.unregister(SIGNAL)
            path.unlink(missing_ok=True)


def request_stacks(pid: int, path: Path) -> str:
    """Return what a process that offers its stacks under `path` writes; "" for no answer."""
    try:
        status = path.lstat()
        # The signal kills a process that does not wait for it, and a record may name any process.
        if not _holds(pid, status):
            return ""
        os.kill(pid, SIGNAL)
    except OSError:  # it has not come so far, or is gone
        return ""
    before = status.st_size
    until = time.monotonic() + _PATIENCE_S
    size = before
    since = 0.0
    while time.monotonic() < until:
        time.sleep(_QUIET_S / 2)
        now = path.stat().st_size
        if now != size:
            size = now
            since = time.monotonic()
        elif size > before and time.monotonic() - since > _QUIET_S:
            break
    return read_part(path, before, before + _MOST_BYTES).decode("utf-8", "replace")


def _holds(pid: int, file: os.stat_result) -> bool:
    """Return whether a process has a file open; True where the system cannot tell."""
    if not Path("/proc/self/fd").is_dir():
        return True
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it has been closed
            if os.path.samestat(each.stat(), file):
                return True
    return False
