"""Files beside the journal of a queue: the folders of its jobs, and the lock of its dispatcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform != "win32":
    import fcntl

LOCK_NAME = "dispatcher.lock"
_LOG_NAME = "log.txt"


def job_folder(queue: Path, job: int) -> Path:
    """Return the folder of a job; it may not exist."""
    return queue / "jobs" / str(job)


def job_log(folder: Path) -> Path:
    """Return the file in the folder of a job that holds what all its attempts have printed."""
    return folder / _LOG_NAME


def dispatcher_pid(queue: Path) -> int:
    """Return the pid of the living dispatcher of a queue, 0 without one."""
    if sys.platform == "win32":  # which has no dispatcher
        return 0
    try:
        descriptor = os.open(queue / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).strip()
        return int(text) if text.isdigit() else -1
    finally:
        os.close(descriptor)
    return 0
