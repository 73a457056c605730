"""Stacks of all threads of a process that hangs: by py-spy where it is installed, else its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from assay.core.stacks import request_stacks
from assay.store.layout import RunFolder

_PATIENCE_S = 10.0


def stacks_of(pid: int, folder: RunFolder) -> str:
    """Return the stacks of a run's process, "" if nobody can tell them.

    py-spy reads them from outside, of a suspended process too; without it, or without the right to
    do so, the process is asked to write them.
    """
    return _by_py_spy(pid) or request_stacks(pid, folder.stacks)


def _by_py_spy(pid: int) -> str:
    beside = os.path.dirname(sys.executable)  # of an environment that nobody has activated
    program = shutil.which("py-spy", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
