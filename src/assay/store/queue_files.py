"""Files beside the journal of a queue: the folders of its jobs, and the lock of its dispatcher."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay.core.errors import InputError, RecordError
from assay.core.regular_file import open_regular
from assay.store.layout import refusal

if sys.platform != "win32":
    import fcntl

LOCK_NAME = "dispatcher.lock"
_LOG_NAME = "log.txt"
_PATIENCE_S, _TICK_S = 0.5, 0.05


def job_folder(queue: Path, job: int) -> Path:
    """Return the folder of a job; it may not exist."""
    return queue / "jobs" / str(job)


def job_log(folder: Path) -> Path:
    """Return the file in the folder of a job that holds what all its attempts have printed."""
    return folder / _LOG_NAME


def append_to_log(log: Path) -> int:
    """Open the log of a job to write behind what it holds, and make it if it is not there.

    OSError for a link, which would lead the output elsewhere, and for all else that is no file.
    """
    return open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def dispatcher_pid(queue: Path) -> int:
    """Return the pid of the living dispatcher of a queue, 0 without one; RecordError if unknown."""
    if sys.platform == "win32":  # which has no dispatcher
        return 0
    try:
        descriptor = open_regular(queue / LOCK_NAME)
    except FileNotFoundError:
        return 0
    except OSError as error:
        what = f"The lock of the queue cannot be read: {error.strerror or error}."
        raise RecordError(what, where=str(queue / LOCK_NAME)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).strip()
        return int(text) if text.isdigit() else -1
    finally:
        os.close(descriptor)
    return 0


@contextmanager
def hold_lock(file: Path, taken: str, *, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Hold the lock that a file is; the kernel frees it at any death.

    The file names the holder. InputError, which says `taken`, when another process still holds it
    after `patience_s`.
    """
    if sys.platform == "win32":
        yield
        return
    try:
        descriptor = open_regular(file, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise refusal(error, file, "The lock cannot be taken") from error
    try:
        if not _take_lock(descriptor, patience_s):
            raise InputError(taken, where=str(file.parent))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, patience_s: float) -> bool:
    """Take the lock; wait a moment for those that only look whether it is taken."""
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_TICK_S)
