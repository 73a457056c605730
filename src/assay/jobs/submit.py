"""Submission of configs to the queue of this machine: checked, rehearsed, frozen, put in line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.compose.examination import examine_runs, rehearse_apart
from assay.compose.launch import Launch
from assay.compose.run_record import project_around
from assay.config import seedless_hash
from assay.config.loading import Config
from assay.core.errors import InputError
from assay.core.formatting import size
from assay.core.job import JobSpec
from assay.formats.rehearsal import Rehearsal
from assay.jobs.devices import this_machine, wanted_devices
from assay.jobs.frozen_jobs import delete_ended_trees, freeze_code, training_spec
from assay.store.job_journal import JobJournal

_CONTEXT_BYTES = 1_000_000_000
_MARGIN = 1.15
"""Forecast of a device's memory: the rehearsed peak with a margin for fragments, and a context."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Needs of one job in bytes, 0 if unknown: on one device, and on the disk of its record."""

    memory_bytes: int = 0
    disk_bytes: int = 0


def preflight(
    configs: Sequence[Config],
    launch: Launch,
    *,
    is_rehearsed: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Forecast]:
    """Rehearse each config that passed the examination, and return a forecast for each.

    Configs that differ in the seed alone share a rehearsal.
    InputError for a step that would fail, and for checkpoints that will not fit on the disk.
    """
    if not is_rehearsed:
        return [Forecast() for _ in configs]
    reports: dict[str, Rehearsal] = {}
    for config in configs:
        key = seedless_hash(config.named or config.root)
        if key not in reports:
            tell(f"rehearsing {config.path.name if config.path else 'the config'} ...")
            reports[key] = _rehearse(config, launch)
    forecasts = [_forecast(reports[seedless_hash(each.named or each.root)]) for each in configs]
    _refuse_full_disk(list(reports.values()), forecasts)
    return forecasts


def _rehearse(config: Config, launch: Launch) -> Rehearsal:
    report = rehearse_apart(config, launch)
    if report.failures:
        first = report.failures[0]
        place = f"{first.source}:{first.line}" if first.source else first.module
        raise InputError(
            f"A rehearsed step failed: {first.message}",
            where=place or str(config.path or ""),
            fix=first.fix or "assay check CONFIG --rehearse shows all of the report",
        )
    return report


def _forecast(report: Rehearsal) -> Forecast:
    is_on_cpu = report.device.startswith("cpu")
    peak = report.memory.peak_bytes if report.memory is not None and not is_on_cpu else 0
    return Forecast(
        memory_bytes=int(peak * _MARGIN) + _CONTEXT_BYTES if peak else 0,
        disk_bytes=report.disk.needed_bytes if report.disk is not None else 0,
    )


def _refuse_full_disk(reports: Sequence[Rehearsal], forecasts: Sequence[Forecast]) -> None:
    disks = [report.disk for report in reports if report.disk is not None]
    needed = sum(forecast.disk_bytes for forecast in forecasts)
    if disks and needed > disks[0].free_bytes:
        raise InputError(
            f"The checkpoints of {len(forecasts)} jobs need {size(needed)}, and"
            f" {size(disks[0].free_bytes)} are free.",
            fix="make room, or keep fewer: checkpoint.keep=1",
        )


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
    wanted = wanted_devices(JobSpec(command=(), cwd="", **placed), this_machine().devices())
    # Those that the machine does not list are torch's to know.
    unlisted = [device.name for device in wanted if device.key == device.name]
    examine_runs(configs, replace(launch, device=",".join(unlisted) or None))
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
