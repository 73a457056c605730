"""Processes of one machine that look after each other: one that is stopped answers nothing, and all wait for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

CHECK_S = 0.5
STOPPED_CHECKS = 10
"""So many times in a row a process has to be found stopped. Times, not seconds: who watches may be stopped with it."""


class Watch:
    """Inside, a process that stays stopped (SIGSTOP) for five seconds is killed, which all others notice at once.

    `pids` gives those to watch, by rank; `tell(rank, pid)` is called before one is killed. One that is held by a
    debugger is left alone. With `parent`, this process gets SIGTERM when that one is no longer its parent.
    """

    def __init__(
        self,
        pids: Callable[[], Mapping[int, int]] = dict,
        tell: Callable[[int, int], object] = lambda rank, pid: None,
        *,
        parent: int = 0,
    ) -> None:
        self.pids = pids
        self.tell = tell
        self.parent = parent
        self.said = ""
        self._checks: dict[int, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="assay-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(CHECK_S):
            if self.parent and os.getppid() != self.parent:
                self.parent = 0
                os.kill(os.getpid(), signal.SIGTERM)
            for rank, pid in self.pids().items():
                self._checks[pid] = self._checks.get(pid, 0) + 1 if _is_stopped(pid) else 0
                if self._checks[pid] == STOPPED_CHECKS:
                    self.said = was_stopped(rank, pid)
                    self.tell(rank, pid)
                    _kill(pid)


def was_stopped(rank: int, pid: int) -> str:
    """What became of it, as a person reads it."""
    return f"Rank {rank} (pid {pid}) was stopped for {CHECK_S * STOPPED_CHECKS:.0f} s (SIGSTOP), and was ended."


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        if Path("/proc/self/stat").exists():
            return False  # there is /proc, so the process is gone
        shown = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.startswith("T")
    return stat[stat.rindex(b")") + 2 :][:1] == b"T"  # t, in small letters, is a debugger's


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
