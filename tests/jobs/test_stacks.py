"""Stacks of an OS process that stands still, read from outside or written by itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.core.stacks import is_suspended
from assay.jobs.stalled_jobs import stacks_of
from assay.store.layout import RunFolder

PYTHON = sys.executable
WAITING = """
import sys, threading, time
from pathlib import Path
from assay.core.stacks import offering_stacks

both = threading.Barrier(2)

def standing_still():
    if both.wait() == 0:
        print("ready", flush=True)
    while True:
        time.sleep(0.05)

threading.Thread(target=standing_still, daemon=True).start()
with offering_stacks(Path(sys.argv[1])):
    standing_still()
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An OS process with two threads in `standing_still`, which offers its stacks."""
    words = [sys.executable, "-c", WAITING, str(RunFolder(tmp_path).stacks)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def without_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


def test_a_process_that_a_record_names_but_that_offers_no_stacks_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_py_spy(monkeypatch, tmp_path)
    RunFolder(tmp_path).stacks.write_text("somebody put this here")
    words = [sys.executable, "-c", "print('ready', flush=True); input()"]
    pipe = subprocess.PIPE
    # Not by the interpreter's name, which is a made-up one here.
    with subprocess.Popen(words, executable=PYTHON, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"

        assert stacks_of(process.pid, RunFolder(tmp_path)) == ""

        process.communicate(b"\n")
    assert process.returncode == 0


def test_without_py_spy_a_process_writes_the_stacks_of_all_threads_itself(
    waiting: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_py_spy(monkeypatch, tmp_path)

    found = stacks_of(waiting.pid, RunFolder(tmp_path))

    assert found.count("in standing_still") == 2


def test_without_py_spy_a_suspended_process_tells_nothing(
    waiting: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_py_spy(monkeypatch, tmp_path)
    os.kill(waiting.pid, signal.SIGSTOP)

    assert stacks_of(waiting.pid, RunFolder(tmp_path)) == ""


def test_py_spy_reads_the_stacks_of_a_suspended_process(
    waiting: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    os.kill(waiting.pid, signal.SIGSTOP)
    while not is_suspended(waiting.pid):
        pass
    program = shutil.which("py-spy", path=os.path.dirname(sys.executable))
    assert program is not None, "it is one of the tools: ./dev setup"
    asked = [program, "dump", "--nonblocking", "--pid", str(waiting.pid)]
    tried = subprocess.run(asked, capture_output=True, text=True)
    if tried.returncode and "permission" in tried.stderr.lower():
        pytest.skip("this machine lets nobody read another process")

    found = stacks_of(waiting.pid, RunFolder(tmp_path))

    assert found.count("standing_still (<string>:") == 2
    assert is_suspended(waiting.pid)
