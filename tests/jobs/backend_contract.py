"""Contract of the port `Backend`: the same tests for every scheduler, each with real jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from assay.core.job import JobSpec, JobStatus
from assay.jobs.backend import Backend

PATIENCE_S = 180.0
POLL_S = 0.2


def job(code: str, tmp_path: Path, **options: object) -> JobSpec:
    """Return a job that runs a line of Python in `tmp_path`."""
    command = (sys.executable, "-c", code)
    return JobSpec(command=command, cwd=str(tmp_path), device="cpu", **options)  # type: ignore[arg-type]


def await_jobs(
    backend: Backend,
    handles: Sequence[str],
    is_met: Callable[[JobStatus], bool] = lambda status: status.is_ended,
) -> list[JobStatus]:
    """Return the states of jobs once all of them meet the condition."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = backend.poll(handles)
        if all(handle in found and is_met(found[handle]) for handle in handles):
            return [found[handle] for handle in handles]
        time.sleep(POLL_S)
    raise AssertionError(f"after {PATIENCE_S:.0f} s: {backend.poll(handles)}")


class BackendContract:
    """Tests that every backend passes; a subclass gives the fixture `backend`."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    @pytest.fixture
    def unknown(self) -> str:
        """Handle of a job that nobody submitted."""
        return "99999999_0"

    def test_each_job_ends_in_its_own_state(self, backend: Backend, tmp_path: Path) -> None:
        specs = [
            job("print('fine')", tmp_path),
            job("import sys; sys.exit(3)", tmp_path),
            job("import os; os.kill(os.getpid(), 9)", tmp_path),
            job("raise MemoryError('torch.OutOfMemoryError')", tmp_path),
        ]

        ended = await_jobs(backend, handles := backend.submit(specs))

        assert len(set(handles)) == 4
        assert [each.state for each in ended] == ["finished", "failed", "failed", "failed"]
        assert [each.exit_code for each in ended[:2]] == [0, 3]
        assert [each.signal for each in ended] == [0, 0, 9, 0]
        failures = [each.failure for each in ended]
        assert failures == ["", "exception", "killed", "out-of-memory"]

    def test_a_job_has_its_own_words_folder_and_variables(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        words = ["a b", "$HOME", "`x`", "it's", 'say "x"', "*", "\\"]
        code = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['VALUE'])"
        folder = tmp_path / "a folder"
        folder.mkdir()
        spec = JobSpec(
            command=(sys.executable, "-c", code, *words),
            cwd=str(folder),
            environment={"VALUE": "$(touch x) 'y'"},
            device="cpu",
        )

        (handle,) = backend.submit([spec])

        assert await_jobs(backend, [handle])[0].state == "finished"
        assert backend.logs(handle).strip() == f"{words} {folder} $(touch x) 'y'"

    def test_jobs_of_one_submission_keep_their_logs_apart(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        handles = backend.submit([job(f"print('job {i}')", tmp_path) for i in range(3)])

        await_jobs(backend, handles)

        assert [backend.logs(each).strip() for each in handles] == ["job 0", "job 1", "job 2"]

    def test_a_job_that_is_cancelled_hears_of_it_first(
        self, backend: Backend, tmp_path: Path
    ) -> None:
        code = (
            "import pathlib, signal, sys, time\n"
            "def stop(*_):\n    pathlib.Path('saved').touch(); sys.exit(143)\n"
            "signal.signal(signal.SIGTERM, stop)\npathlib.Path('begun').touch()\ntime.sleep(600)"
        )
        (handle,) = backend.submit([job(code, tmp_path)])
        await_jobs(backend, [handle], lambda status: (tmp_path / "begun").exists())
        assert backend.poll([handle])[handle].state == "running"

        backend.cancel([handle])

        assert await_jobs(backend, [handle])[0].state == "cancelled"
        assert (tmp_path / "saved").exists()
        backend.cancel([handle])
        assert backend.poll([handle])[handle].state == "cancelled"

    def test_a_job_that_nobody_submitted_is_left_out(self, backend: Backend, unknown: str) -> None:
        assert backend.poll([unknown]) == {}
        assert backend.logs(unknown) == ""
        backend.cancel([unknown])
