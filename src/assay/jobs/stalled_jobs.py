"""Jobs of the queue that live and stand still, and the stacks of their threads."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from assay.core.stacks import request_stacks
from assay.formats import lease as leases
from assay.jobs.job_process import is_job_suspended, members_of
from assay.query.standstill import standstill_of
from assay.store.device_leases import LeaseHolder, RunningJob
from assay.store.layout import RunFolder, find_project, run_folders

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


NEWEST = 100
"""Records of a project among which that of a running job is looked for."""


class Stall(NamedTuple):
    """Standstill of a job: a line for people, its OS process, and its record if it has one."""

    text: str
    pid: int
    record: Path | None

    def stacks(self) -> str:
        """Return the stacks of all threads, "" if nobody can tell them."""
        return stacks_of(self.pid, RunFolder(self.record or Path(os.devnull)))


@dataclass(slots=True)
class StalledJobs:
    """Finder of standstills. It keeps the record of each job that it has found once."""

    _records: dict[LeaseHolder, Path] = field(default_factory=dict)

    def look(self, running: RunningJob) -> Stall | None:
        """Return the standstill of a job, None while it moves or nobody can tell."""
        holder = running.holder
        record = self._record(running)
        found = standstill_of(RunFolder(record)) if record is not None else None
        if found is not None:
            return Stall(found.text, found.pid, record)
        if is_job_suspended(holder):
            pid = next(pid for pid in members_of(holder.pid) if pid != holder.pid)
            return Stall(f"process {pid} is suspended (SIGSTOP)", pid, record)
        return None

    def forget(self, holder: LeaseHolder) -> None:
        self._records.pop(holder, None)

    def _record(self, running: RunningJob) -> Path | None:
        """Return the record that a process of the job writes, None while there is none."""
        holder, root = running.holder, running.job.spec.project
        project = find_project(Path(root)) if root and holder not in self._records else None
        for folder in run_folders(project)[-NEWEST:] if project is not None else ():
            lease = leases.read(folder.path)
            if lease is None or lease.place != holder.place:
                continue
            with contextlib.suppress(OSError):  # it is gone
                if os.getpgid(lease.pid) == holder.pid:
                    self._records[holder] = folder.path
        return self._records.get(holder)
