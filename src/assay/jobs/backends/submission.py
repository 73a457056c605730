"""Submission of configs to a scheduler of other machines, with their code frozen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from assay.compose.launch import Launch
from assay.compose.run_record import project_around
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.core.errors import InputError
from assay.core.job import FOLDER_VARIABLE, JobSpec, JobStatus
from assay.jobs.backend import Backend
from assay.jobs.backends.kubernetes import KubernetesBackend, KubernetesPlace
from assay.jobs.backends.ray import RayBackend
from assay.jobs.backends.slurm import SlurmBackend
from assay.jobs.frozen_jobs import freeze_code, training_spec
from assay.jobs.job_folder import JobFolder
from assay.store.layout import Project

Scheduler = Literal["slurm", "ray", "k8s"]
POLL_S = 1.0
_PASSED_ON = ("ASSAY_RUNS_DIR", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED")
"""Variables that a job of Kubernetes gets: a manifest can be read by many."""


def open_backend(on: Scheduler, project: Project) -> Backend:
    """Return the backend of a scheduler; their files are in `.assay/` of the project."""
    match on:
        case "slurm":
            return SlurmBackend(_folder(on, project))
        case "ray":
            return RayBackend(_folder(on, project))
        case "k8s":
            return KubernetesBackend(_place_of(project))


def specs_of(
    on: Scheduler,
    configs: Sequence[Config],
    launch: Launch,
    project: Project,
    *,
    then_test: bool = False,
) -> list[JobSpec]:
    """Freeze configs and their code; return a job for each.

    A job gets a GPU for each of its processes, unless it runs on the CPU.
    """
    if launch.nnodes > 1:
        fix = "an sbatch script: see the page on multi-node training"
        raise InputError("`--on` runs each config on one machine.", fix=fix)
    folder = _folder(on, project)
    device = "cpu" if launch.device == "cpu" else "auto"
    specs = []
    for config in configs:
        spec = training_spec(
            config,
            launch,
            freeze_code(config),
            folder,
            then_test=then_test,
            device=device,
            devices=launch.nproc or 1,
        )
        results = JobFolder(folder / "results" / Path(spec.command[-1]).stem).make()
        environment = {**spec.environment, FOLDER_VARIABLE: str(results.path)}
        specs.append(replace(spec, environment=environment))
    return [_of_image(spec) for spec in specs] if on == "k8s" else specs


def await_ends(
    backend: Backend, handles: Sequence[str], tell: Callable[[str, JobStatus], object]
) -> dict[str, JobStatus]:
    """Wait until all jobs have ended, and return how; cancel them if this process is interrupted.

    `tell` is called as each of them ends.
    """
    ended: dict[str, JobStatus] = {}
    try:
        while len(ended) < len(handles):
            for handle, status in backend.poll(handles).items():
                if status.is_ended and handle not in ended:
                    ended[handle] = status
                    tell(handle, status)
            time.sleep(POLL_S if len(ended) < len(handles) else 0)
    except BaseException:
        backend.cancel(handles)
        raise
    return ended


def one_project(configs: Sequence[Config]) -> Project:
    """Return the project of configs; InputError for those of several."""
    found = {project_around(config.path).root: project_around(config.path) for config in configs}
    if len(found) > 1:
        raise InputError(
            f"The configs are of {len(found)} projects.", fix="submit those of one at a time"
        )
    return next(iter(found.values()))


def _folder(on: Scheduler, project: Project) -> Path:
    return project.assay_dir / on


def _place_of(project: Project) -> KubernetesPlace:
    place = Settings(project.root).kubernetes
    if place is None:
        fix = f"add [kubernetes] with image, claim and mount to {project.settings}"
        raise InputError("This project does not say where Kubernetes runs it.", fix=fix)
    return KubernetesPlace(**place)


def _of_image(spec: JobSpec) -> JobSpec:
    """Return a job that runs the image's Python, and passes few variables on."""
    kept = {*_PASSED_ON, FOLDER_VARIABLE}
    environment = {name: value for name, value in spec.environment.items() if name in kept}
    command = ("python3", *spec.command[1:])
    return replace(spec, command=command, environment=environment)
