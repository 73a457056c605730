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

from assay.core import lease as leases
from assay.core.heartbeats import read_heartbeat
from assay.jobs.watch import Watcher, notifier_of
from assay.query.standstill import standstill_of
from assay.store.layout import Project, RunFolder
from flow.conftest import SRC, Assay

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


@pytest.mark.thorough
def test_five_ways_to_fail_are_five_messages_and_the_good_run_goes_on(
    toy: Path, sent: Path
) -> None:
    faults = ("oom", "exit", "overflow", "fine")
    signals = (signal.SIGKILL, signal.SIGSTOP)
    runs = [begin(toy, fault) for fault in faults]
    try:
        for number in signals:
            run = begin(toy, "wait")
            runs.append(run)
            await_that(lambda pid=run.pid: is_waiting(toy, pid))
            os.kill(run.pid, number)
        await_that(lambda: len(messages_in(sent)) >= len(runs))
    finally:
        for run in runs:
            run.kill()
            run.wait()

    told = {(each["kind"], each["failure"]) for each in messages_in(sent)}
    assert told >= {
        ("failed", "out-of-memory"),
        ("failed", "exception"),
        ("nan", "nan"),
        ("killed", "killed"),
        ("stalled", "hang"),
        ("finished", ""),
    }
    reasons = {each["failure"]: each["reason"] for each in messages_in(sent)}
    assert "SystemExit: 3" in reasons["exception"]
    assert "SIGSTOP" in reasons["hang"]


@pytest.mark.slow
def test_a_step_that_takes_ten_times_the_usual_is_a_hang_with_the_stacks_of_all_threads(
    toy: Path, sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.query.standstill.LEAST_S", 1.0)
    monkeypatch.setattr("assay.jobs.stacks._by_py_spy", lambda pid: "")
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
