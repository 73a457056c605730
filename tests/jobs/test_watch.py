"""Watcher of runs: an OS process of its own, that tells what the dead cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from assay.core.facts import Ended
from assay.jobs.watch import LOCK_NAME, REQUESTS_NAME, Watcher, notifier_of, only_watcher
from assay.store.layout import Project
from run_folders import make_project, make_run, tell_now

WRITE = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() + sys.stdin.read() + chr(10) if p.exists() else sys.stdin.read() + chr(10))"
SCRIPT = """
import sys, time, assay
with assay.start(tag=sys.argv[1]) as run:
    run.log({"loss": 1.0}, step=1)
    print("begun", flush=True)
    exec(sys.argv[2])
"""


def rules_of(project: Project, sent: Path) -> None:
    words = json.dumps([sys.executable, "-c", WRITE, str(sent)])
    rule = f'[[notify]]\nchannel = "command"\ncommand = {words}\n'
    kinds = ["finished", "failed", "killed", "nan", "stalled", "stopped"]
    project.settings.write_text(f"{rule}when = {json.dumps(kinds)}\n")


def sent_in(file: Path) -> list[dict[str, str]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def await_watching(project: Project, watcher: subprocess.Popen[Any]) -> None:
    """Return once a watcher has taken the request that it was started with.

    The request is there before the lock is.
    """
    requests, lock = (project.assay_dir / name for name in (REQUESTS_NAME, LOCK_NAME))
    while not lock.exists() or any(requests.iterdir()):
        assert watcher.poll() is None
        time.sleep(0.05)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_project(tmp_path / "project")


@pytest.mark.row("A40")
def test_a_good_and_a_bad_run_are_each_sent_once(project: Project, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    rules_of(project, sent)
    a_day_ago = time.time_ns() - 86_400 * 10**9
    watcher = Watcher(project, notifier_of(project), since_ns=a_day_ago)
    tell_now(make_run(project, tag="good"), Ended(status="finished", step=3))
    reason = "ValueError: no such column"
    bad = make_run(project, tag="bad", status="failed")
    tell_now(bad, Ended(status="failed", step=3, reason=reason, traceback=f"in train.py\n{reason}"))

    looks = [watcher.look() for _ in range(3)]
    watcher.close()

    assert [len(look.messages) for look in looks] == [2, 0, 0]
    assert sorted((each["kind"], each["tag"]) for each in sent_in(sent)) == [
        ("failed", "bad"),
        ("finished", "good"),
    ]
    assert any("in train.py" in each["text"] for each in sent_in(sent))


def test_one_process_watches_a_project_at_a_time(project: Project) -> None:
    with only_watcher(project) as first, only_watcher(project) as second:
        assert first and not second
    with only_watcher(project) as third:
        assert third


@pytest.mark.slow
def test_the_watcher_tells_of_a_run_that_was_killed_and_ends_with_the_last_run(
    project: Project, tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    rules_of(project, sent)
    code = "time.sleep(600)"
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "victim", code], cwd=project.root, stdout=subprocess.PIPE
    )
    assert run.stdout is not None and run.stdout.readline() == b"begun\n"
    watcher = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "assay",
            "inbox",
            "--until-idle",
            "--pid",
            str(run.pid),
        ],
        cwd=project.root,
        stdout=subprocess.PIPE,
        text=True,
    )
    await_watching(project, watcher)

    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    said, _ = watcher.communicate(timeout=60)

    assert watcher.returncode == 0
    assert "killed" in said and "victim" in said
    assert [each["kind"] for each in sent_in(sent)] == ["killed"]


@pytest.mark.slow
def test_watchers_of_several_runs_leave_one_which_stays_for_all_of_them(
    project: Project, tmp_path: Path
) -> None:
    """Those that come later leave the OS process that they were started for to the first."""
    first, second = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    words = [sys.executable, "-m", "assay", "inbox", "--until-idle", "--pid"]
    watcher = subprocess.Popen([*words, str(first.pid)], cwd=project.root)
    await_watching(project, watcher)

    later = subprocess.run([*words, str(second.pid)], cwd=project.root, timeout=60)
    first.kill()
    first.wait()
    with only_watcher(project) as is_free:
        assert later.returncode == 0 and watcher.poll() is None and not is_free
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(1)
    second.kill()
    second.wait()

    assert watcher.wait(60) == 0
