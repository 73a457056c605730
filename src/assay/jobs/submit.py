"""Submission of configs to the queue of this machine: checked, rehearsed, frozen, put in line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from assay.compose.launch_settings import Launch
from assay.compose.run_record import project_around
from assay.config.loading import Config
from assay.core.job import JobSpec
from assay.jobs.devices import this_machine, wanted_devices
from assay.jobs.ended_trees import delete_ended_trees
from assay.jobs.frozen_code import freeze_code
from assay.jobs.preflight import preflight
from assay.jobs.training_job import training_spec
from assay.store.job_journal import JobJournal

_KEPT_S = 86_400.0
"""Age at which a submission deletes the code of ended jobs."""


def submit_configs(
    journal: JobJournal,
    configs: Sequence[Config],
    launch: Launch,
    *,
    is_rehearsed: bool = True,
    then_test: bool = False,
    parents: Sequence[str] = (),
    tell: Callable[[str], None] = lambda line: None,
    **placed: Any,
) -> list[int]:
    """Put a job for each config in line, all or none; return their ids.

    `parents` are the runs whose configs these are, one for each. `placed` are fields of JobSpec:
    device, priority, after, limits. ConfigError or InputError for what would fail, before anything
    is in line.
    """
    for job in placed.get("after", ()):
        journal.job(job)
    # A device that is not there is a mistake of now, too.
    wanted_devices(JobSpec(command=(), cwd="", **placed), this_machine().devices())
    forecasts = preflight(configs, launch, is_rehearsed=is_rehearsed, tell=tell)
    for project in {project_around(config.path) for config in configs}:
        delete_ended_trees(project, least_age_s=_KEPT_S)
    specs = [
        training_spec(
            config,
            launch,
            freeze_code(config),
            journal.folder,
            then_test=then_test,
            parent=parent,
            memory_bytes=forecast.memory_bytes,
            **placed,
        )
        for config, forecast, parent in zip(
            configs, forecasts, parents or [""] * len(configs), strict=True
        )
    ]
    return journal.submit(specs)
