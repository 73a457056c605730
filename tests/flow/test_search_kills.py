"""Search in the queue whose processes are killed over and over: each point is measured once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from assay.core.job import FAILURES, JobSpec
from assay.query.run import RunView
from assay.store.job_journal import JobJournal
from assay.store.queue_files import dispatcher_pid

from .conftest import SRC, Assay, wait_for

pytestmark = pytest.mark.usefixtures("forking")

SPACE = """
[sweep]
mode = "random"
points = 40
"optimizer.lr" = { low = 1e-4, high = 1.0, scale = "log" }
"model.width" = [4, 5, 6, 7, 8]
"""
SLOW = """
import time
import points

class Points(points.Points):
    def __getitem__(self, i):
        time.sleep(0.004)
        return super().__getitem__(i)
"""


def views(toy: Path) -> list[RunView]:
    return [RunView(file.parent) for file in toy.glob("runs/*/run.json")]


def told(toy: Path, ran: subprocess.CompletedProcess[str]) -> list[tuple[Any, ...]]:
    """The trials by number, with the values and the score that the table has of their one run."""
    assert ran.returncode == 0, ran.stderr
    points = {view.id: str(view.file.newest.launch["point"]) for view in views(toy)}
    rows = []
    for each in json.loads(ran.stdout)["points"]:
        (run,) = each["runs"]
        rows.append((points[run["id"]], each["values"], run["score"], run["status"]))
    return sorted(rows, key=str)


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def attempts(toy: Path) -> int:
    return sum(len(view.file.attempts) for view in views(toy))


def trials_at_work(toy: Path) -> list[int]:
    return [view.file.newest.pid for view in views(toy) if view.status == "running"]


def parents(search: str) -> list[int]:
    """The process that searches, and the supervisor of the job that it is."""
    return [
        each.pid
        for each in psutil.process_iter()
        if search in _command(each) and each.status() != psutil.STATUS_ZOMBIE
    ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


LONG = (pytest.mark.thorough, pytest.mark.timeout(1200))


@pytest.mark.parametrize(
    ("trials", "kills", "how"),
    [
        (4, 10, ("--parallel", "2")),
        pytest.param(8, 20, ("--sampler", "tpe", "--pruner", "median"), marks=LONG),
        pytest.param(30, 100, ("--parallel", "2"), marks=LONG),
    ],
)
def test_each_point_is_measured_once_though_dispatcher_parent_and_trial_are_killed(
    assay: Assay, begun: Any, toy: Path, trials: int, kills: int, how: tuple[str, ...]
) -> None:
    pytest.importorskip("optuna")
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 9")
    text = text.replace('points.Points", split = 0', 'slow.Points", split = 0')
    (toy / "space.toml").write_text(text + SPACE)
    (toy / "slow.py").write_text(SLOW)
    queue = {"ASSAY_QUEUE_DIR": str(toy / "queue")}
    asked = ("space.toml", "--trials", str(trials), "--device", "cpu", *how)
    undisturbed = told(toy, assay("sweep", *asked, "--json", **queue))
    (toy / "runs").rename(toy / "kept")

    first = begun("sweep", *asked, **queue)
    wait_for(lambda: views(toy))
    first.kill()
    first.communicate()
    search = str(views(toy)[0].file.newest.launch["sweep"])
    with JobJournal(toy / "queue") as journal:
        journal.submit(
            [
                JobSpec(
                    command=(sys.executable, "-m", "assay", "sweep", "--resume", search),
                    cwd=str(toy),
                    environment={**os.environ, **queue, "PYTHONPATH": str(SRC)},
                    device="cpu",
                    max_attempts=10 * kills,
                    retry=FAILURES,
                )
            ]
        )
        done = kill_at_random(begun, toy, journal, search, kills, queue)
        (job,) = journal.jobs()
        assert job.status.state == "finished", job

    assert done == kills
    again = told(toy, assay("sweep", "--resume", search, "--json", **queue))
    assert again == undisturbed
    points = [view.file.newest.launch["point"] for view in views(toy) if view.status == "finished"]
    assert len(points) == len(set(points))


def kill_at_random(
    begun: Any, toy: Path, journal: JobJournal, search: str, kills: int, queue: dict[str, str]
) -> int:
    """Dispatch until nothing is left; kill some processes whenever a run has begun once more."""
    chance = random.Random(kills)
    seen = done = 0
    work = begun("queue", "work", "--until-empty", **queue)
    while not journal.counts().get("finished") and done < kills:
        if work.poll() is not None:
            work.communicate()
            work = begun("queue", "work", "--until-empty", **queue)
        if (now := attempts(toy)) == seen:
            time.sleep(0.02)
            continue
        seen = now
        time.sleep(chance.uniform(0, 0.2))
        found = [*trials_at_work(toy), *parents(search), dispatcher_pid(journal.folder)]
        for pid in chance.sample(found, chance.randint(1, len(found))):
            done += done < kills and pid > 0 and kill(pid)
    said = work.communicate()[1]
    if work.returncode == -signal.SIGKILL:
        work = begun("queue", "work", "--until-empty", **queue)
        said = work.communicate()[1]
    assert work.returncode == 0, said
    return done
