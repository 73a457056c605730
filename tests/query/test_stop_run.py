"""A run is stopped by another OS process than the one that writes it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from assay.core.errors import InputError
from assay.formats import lease
from assay.query.run import RunView
from assay.script import start
from assay.store.layout import Project
from run_folders import hold_lease, make_run


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another OS process of this user."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def hold(run: RunView, other: subprocess.Popen[bytes], **changes: str) -> None:
    start_time = lease.process_start(other.pid)
    hold_lease(run.path, pid=other.pid, **{"process_start": start_time, **changes})


def test_the_process_that_writes_a_run_gets_sigterm(
    project: Project, other: subprocess.Popen[bytes]
) -> None:
    run = RunView(make_run(project, ran_s=None))
    hold(run, other)

    run.stop()

    assert other.wait(60) == -signal.SIGTERM
    run.stop()  # it is gone: nothing happens


def test_a_process_that_has_the_number_of_one_that_wrote_a_run_is_left_alone(
    project: Project, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ended = RunView(make_run(project, ran_s=None)), RunView(make_run(project))
    hold(run, other, process_start="1")
    sent: list[tuple[int, int]] = []

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *signals: sent.append(signals))
        run.stop()
        ended.stop()

    assert sent == []


def test_a_run_of_this_process_is_ended_by_its_handle(project: Project) -> None:
    with (
        start(project=project) as run,
        pytest.raises(InputError, match=r"of this process.\n  fix: its `finish` ends it"),
    ):
        run.view.stop()


@pytest.mark.parametrize(
    ("job", "fix"),
    [("queue node3:12", "assay queue rm 12"), ("slurm 7", "cancel that job")],
)
def test_a_run_of_a_job_is_left_to_its_scheduler(
    project: Project, other: subprocess.Popen[bytes], job: str, fix: str
) -> None:
    run = RunView(make_run(project, ran_s=None, attempt={"launch": {"job": job}}))
    hold(run, other)

    with pytest.raises(InputError, match=rf"of the job {job}\.\n  fix: {fix}$"):
        run.stop()


def test_a_run_on_another_machine_is_refused(project: Project) -> None:
    run = RunView(make_run(project, ran_s=None))
    hold_lease(run.path, host="node3", place="node3/x/y")

    with pytest.raises(InputError, match=r"running on node3\.\n  fix: stop it on that machine"):
        run.stop()


def test_a_run_of_another_user_is_refused(
    project: Project, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunView(make_run(project, ran_s=None))
    hold(run, other)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        with pytest.raises(InputError, match=r"is of another user: process \d+\.\n  fix: ask"):
            run.stop()
