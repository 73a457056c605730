"""`assay queue`: frozen jobs in order, refusals at submission, and a dispatcher that may die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import assay as house
from assay.core.job import Job
from assay.formats import run_file
from assay.store.job_journal import JobJournal

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("forking")]

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "01_digits"


@pytest.fixture
def queue(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobJournal]:
    """The queue of a machine with one device, which exists in name only."""
    whole = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    (toy / "toy.toml").write_text(whole)
    monkeypatch.chdir(toy)
    monkeypatch.setenv("ASSAY_FAKE_DEVICES", "1")
    monkeypatch.setenv("ASSAY_QUEUE_DIR", str(toy / "queue"))
    monkeypatch.setenv("PYTHONPATH", str(Path(house.__file__).parents[1]))
    with JobJournal() as journal:
        yield journal


def work() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "assay", "queue", "work", "--until-empty"])


def running(queue: JobJournal) -> Job:
    """The job that has begun to train."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for each in queue.running():
            if each.holder.pid:
                return each.job
        time.sleep(0.05)
    raise AssertionError("no job was started")


@pytest.mark.row("C78")
def test_jobs_run_in_order_on_one_device_though_the_dispatcher_is_killed(
    assay, queue: JobJournal, toy: Path
) -> None:
    """What was edited after the submission is not what runs."""
    added = assay("run", "--queue", "toy.toml", "--seeds", "3", "--no-rehearse")
    assert added.returncode == 0, added.stderr
    assert [line.split()[:2] for line in added.stdout.splitlines()] == [
        ["job", "1"],
        ["job", "2"],
        ["job", "3"],
    ]
    (toy / "net.py").write_text("raise RuntimeError('half-edited')")

    first = work()
    begun = running(queue)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert queue.running()[0].job.id == begun.id == 1
    second = work()

    assert second.wait(300) == 0
    jobs = queue.jobs()
    assert [job.status.state for job in jobs] == ["finished"] * 3
    assert [job.status.attempt for job in jobs] == [1, 1, 1]
    starts = [job.status.started_ns for job in jobs]
    assert starts == sorted(starts)
    assert all(job.status.ended_ns <= later for job, later in zip(jobs, starts[1:], strict=False))
    seeds = {run_file.read(path).newest.seeds["seed"] for path in (toy / "runs").iterdir()}
    assert seeds == {3, 4, 5}
    listed = assay("queue", "ls")
    assert listed.stdout.splitlines()[-1] == "3 finished"
    assert "finished" in assay("queue", "logs", "2").stdout


@pytest.mark.row("C78")
def test_a_waiting_job_is_cancelled_and_a_mistake_never_gets_in_line(
    assay, queue: JobJournal, toy: Path
) -> None:
    assert assay("run", "--queue", "toy.toml", "--no-rehearse").returncode == 0
    assert assay("queue", "rm", "1").returncode == 0
    assert queue.job(1).status.state == "cancelled"

    for words, said in (
        (["toy.toml", "optimizer.lrr=1"], "lrr"),
        (["toy.toml", "--device", "cuda:7"], "There is no device cuda:7"),
        (["toy.toml", "--device", "bogus:3"], "bogus"),
        (["toy.toml", "model.width=-3"], "rehears"),
    ):
        refused = assay("run", "--queue", *words)
        assert refused.returncode == 2, words
        assert said in refused.stderr
    none = assay("run", "--queue", "toy.toml", "--device", "cuda:0", ASSAY_FAKE_DEVICES="")
    assert none.returncode == 2 and "cuda" in none.stderr
    assert [job.id for job in queue.jobs()] == [1]


def test_a_run_is_put_in_line_again_and_the_new_one_names_it_as_its_parent(
    assay, queue: JobJournal, toy: Path
) -> None:
    assert assay("run", "toy.toml", "--quiet").returncode == 0
    (first,) = (toy / "runs").iterdir()

    added = assay("rerun", "--queue", "last", "optimizer.lr=0.25", "--no-rehearse", "--json")

    assert json.loads(added.stdout) == {"jobs": [1]}, added.stderr
    assert work().wait(300) == 0
    (again,) = (path for path in (toy / "runs").iterdir() if path != first)
    assert run_file.read(again).parent == run_file.read(first).id
    assert "lr = 0.25" in (again / "config.toml").read_text()
    assert queue.job(1).status.run == run_file.read(again).id


def test_the_points_of_the_digits_example_are_jobs_that_share_the_cpu_two_at_a_time(
    assay, queue: JobJournal, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DIGITS, toy, dirs_exist_ok=True)
    monkeypatch.delenv("ASSAY_FAKE_DEVICES")
    monkeypatch.setenv("ASSAY_CORES", "8")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    space = ["sweep.optimizer.lr=[1e-3, 2e-3]", "sweep.model.width=[4, 6]"]
    words = ["digits.toml", *space, "train.steps=2", "evaluate.limit=1", "--device", "cpu"]
    added = assay("run", "--queue", *words, "--no-rehearse")
    assert added.returncode == 0, added.stderr

    running, most = work(), 0
    while running.poll() is None:
        slots = [lease.slot[:2] for lease in queue.leases()]
        assert len(slots) == len(set(slots)) <= 2
        assert {key for key, _ in slots} <= {"cpu"}
        most = max(most, len(slots))
        time.sleep(0.05)

    assert running.returncode == 0 and most == 2
    assert queue.counts() == {"finished": 4} and queue.leases() == []
    assert len({job.status.run for job in queue.jobs()}) == 4
    points = {job.spec.title for job in queue.jobs()}
    assert len(points) == 4, points
    assert len(list((toy / "runs").iterdir())) == 4


def test_a_killed_job_with_attempts_left_resumes_its_run(
    assay, queue: JobJournal, toy: Path
) -> None:
    (toy / "slow.py").write_text(
        "import os, signal, time\nimport net\n\nclass Net(net.Net):\n"
        "    def forward(self, *given):\n"
        "        self.calls = getattr(self, 'calls', 0) + 1\n"
        "        if self.calls == 9 and os.environ['ASSAY_JOB_ATTEMPT'] == '1':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().forward(*given)\n"
    )
    text = (toy / "toy.toml").read_text().replace("net.Net", "slow.Net")
    (toy / "toy.toml").write_text(text.replace("steps = 2", "steps = 12"))
    added = assay("run", "--queue", "toy.toml", "--attempts", "2", "--no-rehearse")
    assert added.returncode == 0, added.stderr

    assert work().wait(300) == 0

    status = queue.job(1).status
    assert (status.state, status.attempt) == ("finished", 2)
    (run,) = (toy / "runs").iterdir()
    attempts = run_file.read(run).attempts
    assert [attempt.from_step for attempt in attempts] == [0, attempts[1].from_step]
    assert attempts[1].from_step in (3, 6)
    assert status.run == run_file.read(run).id
