"""Submission of `assay run --on SCHEDULER`, and what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.cli.queue import hint_dispatcher
from assay.cli.terminal import echo
from assay.core.terminal import visible
from assay.store.job_journal import JobJournal

if TYPE_CHECKING:
    from assay.compose import Launch
    from assay.config import Config
    from assay.core.job import JobStatus
    from assay.jobs.backends.submission import Scheduler


def submit(
    scheduler: Scheduler, configs: Sequence[Config], launch: Launch, *, then_test: bool
) -> int:
    """Submit configs and print the name of each job.

    Jobs of Ray end with this process, which therefore waits for them; the exit code is 1 then if
    one of them did not finish.
    """
    from assay.jobs.backends.submission import await_ends, one_project, open_backend, specs_of

    project = one_project(configs)
    backend = open_backend(scheduler, project)
    specs = specs_of(scheduler, configs, launch, project, then_test=then_test)
    handles = backend.submit(specs)
    titles = {}
    for handle, spec in zip(handles, specs, strict=True):
        titles[handle] = visible(spec.title)
        echo(f"{scheduler}  {handle}  {titles[handle]}")
    if scheduler == "local":
        with JobJournal() as journal:
            hint_dispatcher(journal)
    if scheduler != "ray":
        return 0

    def tell(handle: str, status: JobStatus) -> None:
        echo(f"{status.state}  {handle}  {titles[handle]}  {visible(status.reason)}".rstrip())

    ended = await_ends(backend, handles, tell)
    return int(any(status.state != "finished" for status in ended.values()))
