"""Line of the queue, and what its file says to everybody who opens it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.core.errors import RecordError
from assay.core.job import JobSpec
from assay.store.device_leases import QueueDevice
from assay.store.job_journal import FILE_NAME, JobJournal


def spec(priority: int = 0, device: str = "auto") -> JobSpec:
    return JobSpec(command=("true",), cwd="/", priority=priority, device=device)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JobJournal]:
    with JobJournal(tmp_path / "queue") as opened:
        yield opened


def test_of_each_wish_the_first_in_line_may_start_however_many_wait_before_it(
    journal: JobJournal,
) -> None:
    wide = [spec(device="cuda:0") for _ in range(100)]
    ids = journal.submit([*wide, spec(device="cuda:1"), spec(1, device="cuda:1"), spec()])
    journal.hold([ids[0]], held=True)

    assert [job.id for job in journal.startable()] == [ids[101], ids[1], ids[102]]


def test_the_devices_of_the_dispatcher_are_known_to_everybody_who_opens_the_journal(
    journal: JobJournal,
) -> None:
    assert journal.devices() == []
    devices = [QueueDevice("GPU-1", "cuda:0", total_bytes=80), QueueDevice("cpu", "cpu", 4)]
    journal.set_devices(devices)
    with JobJournal(journal.folder) as other:
        assert other.devices() == devices


def test_a_queue_of_another_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with JobJournal(tmp_path) as journal:
        journal.submit([spec()])
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version = 1")
    database.close()

    with pytest.raises(RecordError, match="another version of assay"):
        JobJournal(tmp_path)
