"""Death of a helper process with its parent, even when the parent is killed (Linux only)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def main_pid() -> int:
    """Return the id to pass to `end_with` in a helper; 0 when not called from the main thread."""
    return os.getpid() if threading.current_thread() is threading.main_thread() else 0


def end_with(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends; call it first of all.

    That thread has to be the main one of `parent`: the kernel takes the end of any other for the
    same. Only Linux has this; elsewhere a helper looks by itself whether its parent is there. No
    other call of Python's standard library asks for it, so it is asked of the C library.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before the kernel knew
            os._exit(1)
