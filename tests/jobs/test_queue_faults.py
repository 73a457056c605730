"""Queue on a full disk, with a locked or read-only journal, and with a clock that goes backwards."""

from __future__ import annotations

import itertools
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.core.errors import RecordError
from assay.core.job import JobSpec
from assay.jobs.devices import FakeDevices
from assay.jobs.dispatcher import Dispatcher
from assay.store.job_journal import FILE_NAME, JobJournal

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
WORK = """
import logging, sys
from pathlib import Path
from assay.jobs.devices import FakeDevices
from assay.jobs.dispatcher import Dispatcher
from assay.store import job_journal
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
job_journal._BUSY_S = 0.2
Dispatcher(job_journal.JobJournal(Path(sys.argv[1])), FakeDevices("2")).run(until_empty=True)
"""
"""A dispatcher that waits for a lock for 0.2 s only."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def dispatcher(queue: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORK, str(queue)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stderr=subprocess.PIPE,
        text=True,
    )


def counting_jobs(folder: Path, count: int, seconds: float = 0.0) -> list[JobSpec]:
    """Jobs that write a line each time that they are run."""
    return [
        JobSpec(
            command=("sh", "-c", f"echo run >> {folder}/starts-{i}; sleep {seconds}"),
            cwd="/",
            environment={"PATH": os.environ["PATH"]},
        )
        for i in range(1, count + 1)
    ]


def assert_each_was_run_once(journal: JobJournal, folder: Path, count: int) -> None:
    assert journal.counts() == {"finished": count}
    assert journal.leases() == []
    for i in range(1, count + 1):
        assert (folder / f"starts-{i}").read_text() == "run\n"


def fill(disk: Path) -> Path:
    """Fill a disk to the last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return filler


def test_on_a_full_disk_the_batch_waits_and_goes_on_when_there_is_room(
    disk: Path, tmp_path: Path
) -> None:
    """Some jobs end while nothing can be written: how they ended is not lost."""
    with JobJournal(disk / "queue") as journal:
        journal.submit(counting_jobs(tmp_path, 6, seconds=0.3))
        work = dispatcher(disk / "queue")
        assert work.stderr is not None
        while not journal.running() or not journal.running()[-1].holder.pid:
            assert work.poll() is None
            time.sleep(0.01)
        filler = fill(disk)

        told = work.stderr.readline()
        filler.unlink()
        _, rest = work.communicate(timeout=120)

        assert work.returncode == 0
        assert "disk" in told or "No space left" in told, told
        assert "Traceback" not in told + rest
        assert_each_was_run_once(journal, tmp_path, 6)


def test_while_the_journal_is_locked_the_batch_waits(tmp_path: Path) -> None:
    with JobJournal(tmp_path / "queue") as journal:
        journal.submit(counting_jobs(tmp_path, 6, seconds=0.2))
        other = sqlite3.connect(tmp_path / "queue" / FILE_NAME, isolation_level=None)
        work = dispatcher(tmp_path / "queue")
        assert work.stderr is not None
        while not list(tmp_path.glob("starts-*")):
            assert work.poll() is None
            time.sleep(0.01)
        other.execute("BEGIN EXCLUSIVE")

        told = [work.stderr.readline() for _ in range(2)]
        other.execute("ROLLBACK")
        other.close()
        _, rest = work.communicate(timeout=120)

        assert work.returncode == 0
        assert "database is locked" in told[0] and (told + rest.splitlines()).count(told[0]) == 1
        assert "Traceback" not in rest
        assert_each_was_run_once(journal, tmp_path, 6)


def test_a_journal_that_is_read_only_is_one_clear_error() -> None:
    """Its owner has taken the right to write from it."""
    with tempfile.TemporaryDirectory() as name:
        queue = Path(name) / "queue"
        with JobJournal(queue) as journal:
            journal.submit(counting_jobs(Path(name), 1))
        for path in (Path(name), queue):
            path.chmod(0o555)
        for file in queue.iterdir():
            file.chmod(0o444)
        mine = os.geteuid()
        try:
            if mine == 0:  # the rights of files do not hold for root
                for path in (Path(name), queue, *queue.iterdir()):
                    os.chown(path, 65534, -1)
                os.seteuid(65534)
            with pytest.raises(RecordError) as caught, JobJournal(queue) as journal:
                Dispatcher(journal, FakeDevices("1")).round()
        finally:
            os.seteuid(mine)
            for path in (Path(name), queue):
                path.chmod(0o755)
    assert "The queue cannot be read or written" in str(caught.value)
    assert FILE_NAME in str(caught.value)
    assert "look whether the disk is full or read-only" in str(caught.value)


def test_a_clock_that_goes_backwards_changes_no_order_frees_nothing_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock finds it a day earlier."""
    days = itertools.count()
    monkeypatch.setattr(time, "time_ns", lambda: 10**18 - next(days) * 86_400 * 10**9)
    order = tmp_path / "order"

    def job(name: str, **fields: object) -> JobSpec:
        return JobSpec(
            command=("sh", "-c", f"echo {name} >> {order}; sleep 0.1"),
            cwd="/",
            environment={"PATH": os.environ["PATH"]},
            time_limit_s=60.0,
            **fields,  # type: ignore[arg-type]
        )

    with JobJournal(tmp_path / "queue") as journal:
        ids = journal.submit([job("first"), job("last"), job("second"), job("urgent", priority=1)])

        Dispatcher(journal, FakeDevices("1")).run(until_empty=True)

        jobs = [journal.job(each) for each in ids]
        assert order.read_text().split() == ["urgent", "first", "last", "second"]
        assert {job.status.state for job in jobs} == {"finished"}
        assert {job.status.attempt for job in jobs} == {1}
        assert jobs[0].status.created_ns > jobs[-1].status.created_ns
        assert journal.leases() == []
