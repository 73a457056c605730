"""Port to whatever runs jobs: this machine's dispatcher, Slurm, Ray, Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from assay.core.job import JobSpec, JobStatus


class Backend(Protocol):
    """Scheduler that takes jobs and reports their states. Handles are its own names for jobs.

    All calls raise AssayError with the scheduler's own words when it refuses or does not answer.
    """

    def submit(self, specs: Sequence[JobSpec]) -> list[str]:
        """Queue jobs; return a handle for each, in order."""
        ...

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the states of jobs by handle; unknown handles are left out."""
        ...

    def cancel(self, handles: Sequence[str]) -> None:
        """End jobs, running ones with SIGTERM first; ended and unknown ones stay as they are."""
        ...

    def logs(self, handle: str) -> str:
        """Return what the job has printed so far; "" if it has not begun."""
        ...
