"""Backend of Ray: each job is a Ray task with resources, started by this OS process."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import AssayError, MissingExtraError
from assay.core.job import JobSpec, JobStatus, classify, describe_end

POLL_S = 0.2
GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL of a job that is cancelled."""

_TAIL_BYTES = 1 << 16


class RayError(AssayError):
    """Refusal of Ray, in its own words."""


class RayBackend:
    """Jobs as tasks of a Ray cluster; a handle is a random name.

    The cluster is that of RAY_ADDRESS, else one on this machine, which ends with this process.
    `folder` lies on a file system that all nodes see; it keeps the output and the wishes to cancel.
    Jobs end with this OS process: whoever submits them waits for them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ray = _import_ray()
        self._tasks: dict[str, Any] = {}
        if not self._ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS")
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise RayError(f"Ray does not answer: {error}") from error

        self._run = self._ray.remote(max_retries=0)(run_job)

    def submit(self, specs: Sequence[JobSpec]) -> list[str]:
        """Start a task for each job; Ray lets them wait for their resources."""
        make_directory(self.folder, PRIVATE)
        return [self._submit(spec) for spec in specs]

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the states of the jobs that this object submitted."""
        return {handle: self._status(handle) for handle in handles if handle in self._tasks}

    def cancel(self, handles: Sequence[str]) -> None:
        """End jobs: SIGTERM first, SIGKILL after `GRACE_S`; a waiting one never begins."""
        for handle in handles:
            if handle in self._tasks and not self._status(handle).is_ended:
                self._file(handle, "cancel").touch()

    def logs(self, handle: str) -> str:
        """Return what a job has printed so far."""
        if handle not in self._tasks:
            return ""
        try:
            return self._file(handle, "txt").read_text("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Leave the cluster; one that began with this object ends."""
        self._ray.shutdown()

    def _submit(self, spec: JobSpec) -> str:
        handle = secrets.token_hex(8)
        gpus = 0 if spec.device == "cpu" else spec.devices / max(1, spec.per_device)
        task = self._run.options(num_cpus=1, num_gpus=gpus, name=spec.title or "assay")
        self._tasks[handle] = task.remote(
            list(spec.command),
            spec.cwd,
            dict(spec.environment),
            str(self.folder / handle),
            spec.time_limit_s,
            GRACE_S,
        )
        return handle

    def _status(self, handle: str) -> JobStatus:
        task = self._tasks[handle]
        ready, _ = self._ray.wait([task], timeout=0)
        if not ready:
            has_begun = self._file(handle, "txt").exists()
            return JobStatus(state="running" if has_begun else "waiting", attempt=int(has_begun))
        try:
            code, is_cancelled = self._ray.get(task)
        except self._ray.exceptions.RayError as error:  # its node or its worker died
            said = str(error).strip().split("\n", 1)[0]
            return JobStatus(state="failed", attempt=1, failure="killed", reason=said)
        if is_cancelled:
            return JobStatus(state="cancelled", attempt=1)
        if code == 0:
            return JobStatus(state="finished", attempt=1, exit_code=0)
        number = max(0, -code)
        exit_code = None if code < 0 else code
        said = self.logs(handle)[-_TAIL_BYTES:]
        return JobStatus(
            state="failed",
            attempt=1,
            exit_code=exit_code,
            signal=number,
            failure=classify(exit_code, number, said),
            reason=describe_end(exit_code, number),
        )

    def _file(self, handle: str, kind: str) -> Path:
        return self.folder / f"{handle}.{kind}"


def run_job(
    command: list[str],
    cwd: str,
    environment: dict[str, str],
    files: str,
    time_limit_s: float | None,
    grace_s: float,
) -> tuple[int, bool]:
    """Run a command in a worker of Ray; return its exit code (negative: signal), and if cancelled.

    The devices that Ray gave to the worker come with it: they stand in its environment.
    """
    wish = Path(f"{files}.cancel")
    if wish.exists():
        return 0, True
    given = {name: value for name, value in os.environ.items() if name.endswith("_VISIBLE_DEVICES")}
    home = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with open(f"{files}.txt", "ab") as out:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**home, **environment, **given},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            out.write(f"{error.filename or command[0]}: {error.strerror}\n".encode())
            return 127, False
    until = time.monotonic() + time_limit_s if time_limit_s else float("inf")
    while process.poll() is None and not wish.exists() and time.monotonic() < until:
        time.sleep(POLL_S)
    is_cancelled = process.poll() is None and wish.exists()
    return _end(process, grace_s), is_cancelled


def _end(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """End a process and its children if they still run; return the exit code."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtraError("The backend `ray`", extra="ray") from None
