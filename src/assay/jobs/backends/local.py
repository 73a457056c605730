"""Backend of this machine: its own queue, whose jobs `assay queue work` starts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.core.errors import InputError
from assay.core.job import Job, JobSpec, JobStatus
from assay.jobs.job_folder import JobFolder, LogReader
from assay.store.job_journal import JobJournal


class LocalBackend:
    """Jobs in the queue of this machine; a handle is the number of a job.

    `folder` is that of the queue, by default the one of this machine. Without a dispatcher at work
    jobs wait.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def submit(self, specs: Sequence[JobSpec]) -> list[str]:
        """Put jobs in line, all or none."""
        with JobJournal(self._folder) as journal:
            return [str(job) for job in journal.submit(specs)]

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the states of jobs that the queue knows."""
        with JobJournal(self._folder) as journal:
            return {handle: job.status for handle, job in _find_jobs(journal, handles).items()}

    def cancel(self, handles: Sequence[str]) -> None:
        """Take jobs out of the line, and let the dispatcher end those that run."""
        with JobJournal(self._folder) as journal:
            found = _find_jobs(journal, handles).values()
            journal.request_cancel([job.id for job in found if not job.status.is_ended])

    def logs(self, handle: str) -> str:
        """Return what all attempts of a job have printed."""
        with JobJournal(self._folder) as journal:
            return "".join(
                LogReader(JobFolder.of(journal.folder, job.id).log).read(is_last=True)
                for job in _find_jobs(journal, [handle]).values()
            )


def _find_jobs(journal: JobJournal, handles: Sequence[str]) -> dict[str, Job]:
    """Return the jobs of handles, without those that nobody submitted."""
    found = {}
    for handle in filter(str.isdecimal, handles):
        with contextlib.suppress(InputError):
            found[handle] = journal.job(int(handle))
    return found
