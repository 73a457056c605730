"""Supervisor of one job: an OS process that starts the command, waits, and writes how it ended.

It outlives the dispatcher, of which it is a fork, so that the end of a job is known however the
dispatcher ended.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time

from assay.core import signals
from assay.core.job import boot_ns

GO = b"g"
NOT_BEGUN = 125
_DISK_FULL_S = 1.0
_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def supervise(gate: int, exit_file: str, cwd: str, command: list[str]) -> int:
    """Run `command` in `cwd` once a byte comes through `gate`; write how it ended.

    The name of the file is `exit_file` with the pid of this process. Without the byte, when whoever
    started this process has died, nothing runs: a job never runs that no journal knows.
    """
    signals.ignore()  # they are meant for the command, which is in the same process group
    is_to_begin = os.read(gate, 1) == GO
    os.close(gate)
    end = _run(cwd, command) if is_to_begin else {"not_begun": True}
    at = {"ended_ns": time.time_ns(), "ended_boot_ns": boot_ns()}
    _write(f"{exit_file}-{os.getpid()}.json", {**end, **at})
    return 0 if is_to_begin else NOT_BEGUN


def _run(cwd: str, command: list[str]) -> dict[str, object]:
    """Return the exit code of a command, or the signal that killed it."""
    # The lowest free number: it becomes the standard input of the command.
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
    try:
        os.chdir(cwd)
        pid = os.posix_spawnp(command[0], command, os.environ, setsigdef=_ASKING)
    except OSError as error:
        return {"exit_code": 127, "error": f"{error.filename or command[0]}: {error.strerror}"}
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"exit_code": code} if code >= 0 else {"signal": -code}


def _write(path: str, end: dict[str, object]) -> None:
    """Write the file whole or not at all: a reader may come at any moment.

    While the disk is full it is tried again: nobody else knows how the command ended.
    """
    while True:
        try:
            # Not over what lies there: a link would lead it elsewhere, a pipe would never be read.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + ".new")
            with open(path + ".new", "x", encoding="utf-8") as file:
                json.dump(end, file)
            os.replace(path + ".new", path)
            return
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            time.sleep(_DISK_FULL_S)
