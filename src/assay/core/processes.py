"""OS processes: signals to them, who is in a group, and limits of waiting for their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from assay.core.signals import is_crash

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


def describe_exit(code: int) -> str:
    """Say how a process ended, from its exit code; -N is signal N."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"crashed ({name})" if is_crash(-code) else f"was killed by {name}"


def is_suspended(pid: int) -> bool:
    """Return True for a process that was stopped (SIGSTOP); one held by a debugger is not."""
    state, _ = state_and_group(pid)
    if state or Path("/proc/self/stat").exists():  # without a state it is gone
        return state == "T"  # t, in small letters, is a debugger's
    shown = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.startswith("T")


def state_and_group(pid: int) -> tuple[str, int]:
    """Return the state letter and the group of an OS process; "" and 0 where nobody knows them."""
    try:
        stat = Path("/proc", str(pid), "stat").read_bytes()
        state, _, group = stat[stat.rindex(b")") + 2 :].split()[:3]
        return state.decode("ascii"), int(group)
    except (OSError, ValueError):
        return "", 0


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
        state, its_group = state_and_group(int(name))
        if its_group == group and state not in ("Z", "X"):
            members[int(name)] = state
    return members
