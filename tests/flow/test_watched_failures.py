"""Runs that fail in different ways, each told apart from outside of their OS processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.formats import lease as leases
from assay.formats.heartbeats import read_heartbeat
from assay.jobs.watch import Watcher, notifier_of
from assay.query.standstill import standstill_of
from assay.store.job_journal import JobJournal
from assay.store.layout import Project, RunFolder
from flow.conftest import SRC, Assay

pytestmark = pytest.mark.usefixtures("forking")

FAULTY = """\
import sys
import time

import net
import torch

class Faulty(net.Net):
    def __init__(self, width, fault):
        super().__init__(width)
        self.fault = fault
        self.count = 0

    def forward(self, x):
        self.count += 1
        if self.count < 20:
            return super().forward(x)
        if self.fault == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB.")
        if self.fault == "exit":
            sys.exit(3)
        if self.fault == "overflow":
            return super().forward(x) * float("nan")
        while self.fault == "wait":
            time.sleep(0.05)
        return super().forward(x)
"""
KEEP = "import pathlib, sys; open(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))"
PATIENCE_S = 120.0


def begin(toy: Path, fault: str) -> subprocess.Popen[bytes]:
    (toy / "faulty.py").write_text(FAULTY)
    words = ["toy.toml", "model.type=faulty.Faulty", f"model.fault={fault}", f"tag={fault}"]
    return subprocess.Popen(
        [sys.executable, "-m", "assay", "run", *words, "--quiet"],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def await_that(is_so: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)


def is_waiting(toy: Path, pid: int) -> bool:
    """Return True once the run of a process has come to the step with the fault."""
    for file in (toy / "runs").glob("*/heartbeat.bin"):
        lease, beat = leases.read(file.parent), read_heartbeat(file)
        if lease is not None and lease.pid == pid and beat is not None:
            return beat.count > 0 and time.monotonic() - beat.at_s > 0.5
    return False


@pytest.fixture
def sent(toy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """File to which a rule of the toy project appends each message."""
    for name in ("DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    file = tmp_path / "sent.jsonl"
    (toy / ".assay").mkdir()
    words = json.dumps([sys.executable, "-c", KEEP, str(file)])
    when = json.dumps(["finished", "failed", "killed", "nan", "stalled", "stopped"])
    rule = f'[[notify]]\nchannel = "command"\ncommand = {words}\nwhen = {when}\n'
    (toy / ".assay" / "settings.toml").write_text(rule)
    return file


def messages_in(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def waiting_pid(toy: Path, tag: str) -> int:
    """Return the pid of the run with this tag once it stands at the step with the fault, else 0."""
    for folder in (toy / "runs").glob(f"*-{tag}"):
        lease = leases.read(folder)
        if lease is not None and is_waiting(toy, lease.pid):
            return lease.pid
    return 0


@pytest.mark.thorough
def test_in_the_queue_five_ways_to_fail_and_a_hang_are_told_apart_and_the_batch_goes_on(
    toy: Path, sent: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a message and an end of its own."""
    monkeypatch.setenv("ASSAY_QUEUE_DIR", str(toy / "queue"))
    monkeypatch.setenv("ASSAY_FAKE_DEVICES", "3")
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    (toy / "faulty.py").write_text(FAULTY)
    faults = {"oom": "oom", "exit": "exit", "nan": "overflow"}
    faults |= dict.fromkeys(("kill", "stop", "hang"), "wait") | {"fine": "none"}
    for tag, fault in faults.items():
        words = ["toy.toml", "model.type=faulty.Faulty", f"model.fault={fault}", f"tag={tag}"]
        limit = ["--hang-limit", "0.05"] if tag == "hang" else []
        added = assay("run", *words, *limit, "--queue", "--no-rehearse")
        assert added.returncode == 0, added.stderr
    work = subprocess.Popen(
        [sys.executable, "-m", "assay", "queue", "work", "--until-empty"], cwd=toy
    )
    try:
        await_that(lambda: waiting_pid(toy, "kill"))
        os.kill(waiting_pid(toy, "kill"), signal.SIGKILL)
        await_that(lambda: waiting_pid(toy, "stop"))
        os.kill(stopped := waiting_pid(toy, "stop"), signal.SIGSTOP)
        await_that(lambda: any("SIGSTOP" in each["reason"] for each in messages_in(sent)))
        os.kill(stopped, signal.SIGKILL)
        await_that(lambda: len({each["tag"] for each in messages_in(sent)}) == len(faults))
        assert work.wait(PATIENCE_S) == 0
    finally:
        work.kill()
        work.wait()

    told = {(each["tag"], each["kind"], each["failure"]) for each in messages_in(sent)}
    assert told >= {
        ("oom", "failed", "out-of-memory"),
        ("exit", "failed", "exception"),
        ("nan", "nan", "nan"),
        ("kill", "killed", "killed"),
        ("stop", "stalled", "hang"),
        ("hang", "stalled", "hang"),
        ("fine", "finished", ""),
    }
    with JobJournal() as journal:
        jobs = dict(zip(faults, journal.jobs(), strict=True))
    ends = {tag: (job.status.failure, job.status.reason) for tag, job in jobs.items()}
    assert ends["oom"][0] == "out-of-memory" and "CUDA out of memory" in ends["oom"][1]
    assert ends["exit"] == ("exception", "SystemExit: 3")
    assert ends["nan"][0] == "nan"
    assert ends["kill"] == ("killed", "killed by SIGKILL")
    assert ends["hang"][0] == "hang" and ends["hang"][1].startswith("no step for 3 s; killed by")
    assert ends["fine"] == ("", "")


@pytest.mark.slow
def test_a_step_that_takes_ten_times_the_usual_is_a_hang_with_the_stacks_of_all_threads(
    toy: Path, sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.query.standstill.LEAST_S", 1.0)
    run = begin(toy, "wait")
    try:
        await_that(lambda: is_waiting(toy, run.pid))
        (folder,) = (toy / "runs").iterdir()
        await_that(lambda: standstill_of(RunFolder(folder)) is not None)
        project = Project(toy)
        watcher = Watcher(project, notifier_of(project), since_ns=1)
        looks = [watcher.look(), watcher.look()]
        watcher.close()
    finally:
        run.kill()
        run.wait()

    ((message,), none) = [look.messages for look in looks]
    assert message.kind == "stalled" and "no step for" in message.text and not none
    assert re.search(r'faulty.py", line \d+ in forward', message.detail)
    assert message.detail.count("hread 0x") > 1


@pytest.mark.slow
def test_a_run_that_ends_leaves_no_heartbeats_behind(toy: Path, assay: Assay) -> None:
    assert assay("run", "toy.toml", "--max-steps", "3").returncode == 0

    (folder,) = (toy / "runs").iterdir()
    assert not {"heartbeat.bin", "stacks.txt"} & {each.name for each in folder.iterdir()}
