"""Submission of configs to a scheduler of other machines, with their code frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from assay.compose.launch import Launch
from assay.compose.run_record import project_around
from assay.config.loading import Config
from assay.config.settings import Settings
from assay.core.errors import InputError
from assay.core.job import FOLDER_VARIABLE, JobSpec
from assay.jobs.backends.kubernetes import KubernetesPlace, submit_to_kubernetes
from assay.jobs.backends.slurm import submit_to_slurm
from assay.jobs.frozen_jobs import freeze_code, training_spec
from assay.jobs.job_folder import JobFolder
from assay.store.layout import Project

Scheduler = Literal["slurm", "ray", "k8s"]
Cluster = Literal["slurm", "k8s"]
_PASSED_ON = ("ASSAY_RUNS_DIR", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED")
"""Variables that a job of Kubernetes gets: a manifest can be read by many."""


def submit_jobs(on: Cluster, specs: Sequence[JobSpec], project: Project) -> list[str]:
    """Submit jobs to a cluster; return its own names for them, in order.

    AssayError with the scheduler's own words when it refuses or does not answer.
    """
    if on == "slurm":
        return submit_to_slurm(specs, folder_of(on, project))
    return submit_to_kubernetes(specs, _place_of(project))


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
    folder = folder_of(on, project)
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


def one_project(configs: Sequence[Config]) -> Project:
    """Return the project of configs; InputError for those of several."""
    found = {project_around(config.path).root: project_around(config.path) for config in configs}
    if len(found) > 1:
        raise InputError(
            f"The configs are of {len(found)} projects.", fix="submit those of one at a time"
        )
    return next(iter(found.values()))


def folder_of(on: Scheduler, project: Project) -> Path:
    """Return the folder of the files of a scheduler."""
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
