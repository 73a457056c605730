"""Queue as a reader sees it: lanes, the line, what has ended, and what has changed since."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.core.errors import InputError
from assay.core.job import JobSpec
from assay.query.catalog import Catalog
from assay.query.job_queue import (
    QueueChanges,
    QueueView,
    has_queue,
    job_text,
    queue_counts,
    queue_view,
    runs_of_jobs,
)
from assay.store.device_leases import DeviceSlot, QueueDevice, holder_of
from assay.store.job_journal import JobJournal
from assay.store.queue_files import job_folder, job_log
from run_folders import id_of, make_project, make_run


def spec(**fields: object) -> JobSpec:
    return JobSpec(command=("true",), cwd="/", **fields)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JobJournal]:
    with JobJournal(tmp_path / "queue") as opened:
        yield opened


def test_nothing_is_made_by_looking_for_a_queue_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "none"

    assert queue_view(folder) == QueueView()
    assert queue_counts(folder) == {}
    with contextlib.closing(QueueChanges(folder)) as changes:
        assert changes.look() == (False, {})
    assert not folder.exists()


def test_a_lane_is_a_device_of_the_dispatcher_or_one_that_somebody_holds(
    journal: JobJournal,
) -> None:
    journal.set_devices([QueueDevice("GPU-a", "cuda:0"), QueueDevice("GPU-b", "cuda:1")])
    job, waiting = journal.submit([spec(), spec()])
    both = [DeviceSlot("GPU-a", 0, "cuda:0"), DeviceSlot("mps", 0, "mps")]
    journal.claim(job, lambda leases: both)
    journal.take(lambda leases: [DeviceSlot("GPU-b", 0, "cuda:1")], holder_of(os.getpid()))

    view = queue_view(journal.folder)

    assert [lane.device.name for lane in view.lanes] == ["cuda:0", "cuda:1", "mps"]
    assert [[lease.job for lease in lane.leases] for lane in view.lanes] == [[job], [0], [job]]
    assert all(lease.since_ns > 0 for lane in view.lanes for lease in lane.leases)
    assert list(view.running) == [job]
    assert [each.id for each in view.waiting] == [waiting]
    assert view.dispatcher == 0


def test_a_look_tells_of_changed_jobs_and_of_longer_logs_once(journal: JobJournal) -> None:
    (job,) = journal.submit([spec()])
    with contextlib.closing(QueueChanges(journal.folder)) as changes:
        assert changes.look() == (True, {})
        assert changes.look() == (False, {})
        journal.claim(job, lambda leases: [])
        log = job_log(job_folder(journal.folder, job))
        log.parent.mkdir(parents=True)
        log.write_text("hello\n")
        assert changes.look() == (True, {job: 6})
        log.write_text("hello\nagain\n")
        assert changes.look() == (False, {job: 12})
        assert changes.look() == (False, {})
        journal.unclaim(job)
        assert has_queue(journal.folder)
        assert changes.look() == (True, {})


def test_the_log_of_a_job_is_read_in_parts_and_never_through_a_link(
    journal: JobJournal, tmp_path: Path
) -> None:
    job, linked = journal.submit([spec(), spec()])
    assert job_text(job, 0, 100, journal.folder) == b""
    for each in (job, linked):
        job_folder(journal.folder, each).mkdir(parents=True)
    job_log(job_folder(journal.folder, job)).write_bytes(b"0123456789")
    (tmp_path / "secret").write_text("secret")
    job_log(job_folder(journal.folder, linked)).symlink_to(tmp_path / "secret")

    assert job_text(job, 2, 5, journal.folder) == b"234"
    assert job_text(job, 8, 100, journal.folder) == b"89"
    with pytest.raises(Exception, match=f"The log of job {linked} cannot be read"):
        job_text(linked, 0, 100, journal.folder)
    with pytest.raises(InputError, match="There is no job 99"):
        job_text(99, 0, 100, journal.folder)


def test_a_running_job_leads_to_the_run_that_it_writes(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    launch = {"job": f"queue {platform.node()}:7"}
    ours = make_run(project, tag="ours", ran_s=None, attempt={"launch": launch})
    make_run(project, tag="other", ran_s=None, attempt={"launch": {"job": "slurm 7"}})
    with contextlib.closing(Catalog(project)) as catalog:
        catalog.synchronize()
        assert runs_of_jobs(catalog.open_rows()) == {7: id_of(ours)}
