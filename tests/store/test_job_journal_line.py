"""Line of the queue: a job is put before another one, and every other job keeps its order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError
from assay.core.job import JobSpec
from assay.store.device_leases import QueueDevice
from assay.store.job_journal import FILE_NAME, JobJournal


def spec(priority: int = 0) -> JobSpec:
    return JobSpec(command=("true",), cwd="/", priority=priority)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JobJournal]:
    with JobJournal(tmp_path / "queue") as opened:
        yield opened


@given(data=st.data(), priorities=st.lists(st.integers(-2, 2), min_size=2, max_size=7))
def test_a_moved_job_stands_right_before_the_named_one_and_no_other_pair_is_swapped(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, priorities: list[int]
) -> None:
    with JobJournal(tmp_path_factory.mktemp("queue")) as journal:
        ids = journal.submit([spec(each) for each in priorities])
        for _ in range(4):
            before = [job.id for job in journal.line()]
            job, other = (data.draw(st.sampled_from(ids)) for _ in range(2))
            journal.move_before(job, other)

            expected = [each for each in before if each != job]
            if job == other:
                expected = before
            else:
                expected.insert(expected.index(other), job)
            assert [job.id for job in journal.line()] == expected


def test_a_job_that_waits_no_longer_is_not_moved(journal: JobJournal) -> None:
    first, second = journal.submit([spec(), spec()])
    journal.request_cancel([first])

    with pytest.raises(InputError, match=f"Job {first} waits no longer"):
        journal.move_before(second, first)
    with pytest.raises(InputError, match=f"Job {first} waits no longer"):
        journal.move_before(first, second)
    with pytest.raises(InputError, match="There is no job 9"):
        journal.move_before(second, 9)


def test_the_devices_of_the_dispatcher_are_known_to_everybody_who_opens_the_journal(
    journal: JobJournal,
) -> None:
    assert journal.devices() == []
    devices = [QueueDevice("GPU-1", "cuda:0", total_bytes=80), QueueDevice("cpu", "cpu", 4)]
    journal.set_devices(devices)
    with JobJournal(journal.folder) as other:
        assert other.devices() == devices


def test_a_queue_of_before_keeps_its_jobs_and_their_times(tmp_path: Path) -> None:
    with JobJournal(tmp_path) as journal:
        (job,) = journal.submit([spec()])
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("ALTER TABLE jobs RENAME COLUMN seconds TO unknown")
        database.execute("UPDATE jobs SET state = 'finished', started_ns = 1e9, ended_ns = 4e9")
        database.execute("PRAGMA user_version = 1")
    database.close()

    for _ in range(2):
        with JobJournal(tmp_path) as journal:
            assert journal.job(job).status.duration_s == 3
