"""Submission of `assay run` to the queue or to a scheduler, and what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.cli.queue import print_jobs
from assay.cli.terminal import echo, echo_json
from assay.core.terminal import visible
from assay.store.job_journal import JobJournal

if TYPE_CHECKING:
    from assay.compose import Launch
    from assay.config import Config
    from assay.core.job import JobStatus
    from assay.jobs.backends.submission import Scheduler


def submit_to_queue(
    configs: Sequence[Config], launch: Launch, *, as_json: bool = False, **placed: Any
) -> int:
    """Put a job for each config in line on this machine; print their numbers."""
    from assay.jobs.submit import submit_configs

    with JobJournal() as journal:
        jobs = submit_configs(
            journal,
            configs,
            replace(launch, device=None, quiet=True),
            device=launch.device or "auto",
            devices=launch.nproc or 1,
            tell=lambda line: echo(line, err=True),
            **placed,
        )
        if as_json:
            echo_json({"jobs": jobs})
        else:
            print_jobs(journal, jobs)
    return 0


def submit(
    scheduler: Scheduler, configs: Sequence[Config], launch: Launch, *, then_test: bool
) -> int:
    """Submit configs to a cluster and print the name of each job.

    Jobs of Ray end with this process, which therefore waits for them; the exit code is 1 then if
    one of them did not finish.
    """
    from assay.jobs.backends.ray import run_on_ray
    from assay.jobs.backends.submission import folder_of, one_project, specs_of, submit_jobs

    project = one_project(configs)
    specs = specs_of(scheduler, configs, launch, project, then_test=then_test)
    titles = [visible(spec.title) for spec in specs]
    if scheduler != "ray":
        for handle, title in zip(submit_jobs(scheduler, specs, project), titles, strict=True):
            echo(f"{scheduler}  {handle}  {title}")
        return 0

    for place, title in enumerate(titles):
        echo(f"ray  {place}  {title}")

    def tell(place: int, status: JobStatus) -> None:
        echo(f"{status.state}  {place}  {titles[place]}  {visible(status.reason)}".rstrip())

    ended = run_on_ray(specs, folder_of(scheduler, project), tell)
    return int(any(status.state != "finished" for status in ended))
