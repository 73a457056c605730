"""Jobs of Ray: each is a task with resources, started by this OS process, which waits for it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.core.directory import PRIVATE, make_directory
from assay.core.errors import AssayError, MissingExtraError
from assay.core.job import JobSpec, JobStatus, classify, describe_end
from assay.core.processes import GRACE_S, kill_group

POLL_S = 0.2

_TAIL_BYTES = 1 << 16


class RayError(AssayError):
    """Refusal of Ray, in its own words."""


def run_on_ray(
    specs: Sequence[JobSpec], folder: Path, tell: Callable[[int, JobStatus], object]
) -> list[JobStatus]:
    """Run jobs as tasks of a Ray cluster, and return how they ended.

    The cluster is that of RAY_ADDRESS, else one on this machine, which ends with this process. Jobs
    end with it, too: SIGTERM first, SIGKILL after `GRACE_S`. `folder` lies on a file system that
    all nodes see; it keeps the output and the wish to end. `tell` gets the place of each job that
    has ended.
    """
    ray = _import_ray()
    make_directory(folder, PRIVATE)
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RayError(f"Ray does not answer: {error}") from error
    run = ray.remote(max_retries=0)(run_job)
    files = [folder / secrets.token_hex(8) for _ in specs]
    tasks = [_begin(run, *each) for each in zip(specs, files, strict=True)]
    ended: dict[int, JobStatus] = {}
    try:
        while len(ended) < len(tasks):
            left = [task for place, task in enumerate(tasks) if place not in ended]
            ready, _ = ray.wait(left, timeout=POLL_S)
            for place in map(tasks.index, ready):
                ended[place] = _status(ray, tasks[place], files[place])
                tell(place, ended[place])
    except BaseException:
        for file in files:
            file.with_suffix(".cancel").touch()
        ray.wait(tasks, num_returns=len(tasks), timeout=2 * GRACE_S)
        raise
    return [ended[place] for place in range(len(tasks))]


def _begin(run: Any, spec: JobSpec, file: Path) -> Any:
    """Start a task; Ray lets it wait for its resources."""
    gpus = 0 if spec.device == "cpu" else spec.devices / max(1, spec.per_device)
    task = run.options(num_cpus=1, num_gpus=gpus, name=spec.title or "assay")
    words = list(spec.command), spec.cwd, dict(spec.environment), str(file)
    return task.remote(*words, spec.time_limit_s, GRACE_S)


def _status(ray: Any, task: Any, file: Path) -> JobStatus:
    try:
        code, is_cancelled = ray.get(task)
    except ray.exceptions.RayError as error:  # its node or its worker died
        said = str(error).strip().split("\n", 1)[0]
        return JobStatus(state="failed", attempt=1, failure="killed", reason=said)
    if is_cancelled:
        return JobStatus(state="cancelled", attempt=1)
    if code == 0:
        return JobStatus(state="finished", attempt=1, exit_code=0)
    number = max(0, -code)
    exit_code = None if code < 0 else code
    said = file.with_suffix(".txt").read_text("utf-8", "replace")[-_TAIL_BYTES:]
    return JobStatus(
        state="failed",
        attempt=1,
        exit_code=exit_code,
        signal=number,
        failure=classify(exit_code, number, said),
        reason=describe_end(exit_code, number),
    )


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
        kill_group(process.pid, signal.SIGTERM)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
    return process.wait()


def _import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtraError("`--on ray`", extra="ray") from None
