"""Stacks of an OS process that stands still, written by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.core.stacks import request_stacks
from assay.store.layout import RunFolder

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


def test_a_process_that_a_record_names_but_that_offers_no_stacks_gets_no_signal(
    tmp_path: Path,
) -> None:
    RunFolder(tmp_path).stacks.write_text("somebody put this here")
    words = [sys.executable, "-c", "print('ready', flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"

        assert request_stacks(process.pid, RunFolder(tmp_path).stacks) == ""

        process.communicate(b"\n")
    assert process.returncode == 0


def test_a_process_writes_the_stacks_of_all_threads_itself(
    waiting: subprocess.Popen[bytes], tmp_path: Path
) -> None:

    found = request_stacks(waiting.pid, RunFolder(tmp_path).stacks)

    assert found.count("in standing_still") == 2


def test_a_suspended_process_tells_nothing(
    waiting: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    os.kill(waiting.pid, signal.SIGSTOP)

    assert request_stacks(waiting.pid, RunFolder(tmp_path).stacks) == ""
