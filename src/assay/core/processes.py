"""OS processes: signals to them, who is in a group, and limits of waiting for their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL: a run saves a checkpoint meanwhile."""
BUILDING_S = 20.0
"""The same for a rank that hears a first signal before it has begun to train."""
WRITING_S = 20.0
"""The same for a rank that hears a second signal while it writes the end of its record."""
AT_ONCE_S = 2.0
"""The same for a rank that hears a second signal, or that has to meet one that is gone."""
ORDERED_S = 3.0
"""Seconds between the order to all ranks to end and SIGKILL."""


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal an OS process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    """Signal all processes of a group, which may be gone already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def is_suspended(pid: int) -> bool:
    """Return True for a process that was stopped (SIGSTOP); one held by a debugger is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        if Path("/proc/self/stat").exists():
            return False  # there is /proc, so the process is gone
        shown = subprocess.run(
            ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return shown.stdout.startswith("T")
    return stat[stat.rindex(b")") + 2 :][:1] == b"T"  # t, in small letters, is a debugger's


def members_of(group: int) -> dict[int, str]:
    """Return state by pid of the processes of a group, without zombies.

    `killpg(group, 0)` alone cannot tell: it counts zombies, which stay where there is no init.
    """
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return {}
    except PermissionError:
        pass
    members: dict[int, str] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {group: "?"}
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            stat = Path("/proc", name, "stat").read_bytes()
            state, _, pgrp = stat[stat.rindex(b")") + 2 :].split()[:3]
            if int(pgrp) == group and state not in (b"Z", b"X"):
                members[int(name)] = state.decode("ascii")
    return members
