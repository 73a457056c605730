"""Submission to Kubernetes: indexed Jobs, made by kubectl."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from assay.core.errors import AssayError, InputError
from assay.core.job import JobSpec
from assay.jobs.backends.job_script import choose_job

GRACE_S = 120
"""Seconds that a run has to save after SIGTERM."""

_PATIENCE_S = 60


class KubernetesError(AssayError):
    """Refusal of kubectl, in its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesPlace:
    """Image in which jobs run, and the volume claim with project and runs, mounted at `mount`."""

    image: str
    claim: str
    mount: str


def submit_to_kubernetes(specs: Sequence[JobSpec], place: KubernetesPlace) -> list[str]:
    """Make one indexed Job for each stretch of jobs that ask for the same resources.

    Each is an index of such a Job; its handle is `NAME/INDEX`. Cluster and namespace are those of
    kubectl's current context.
    """
    handles: list[str] = []
    for gpus, alike in groupby(specs, key=_gpus_of):
        manifest = manifest_of(list(alike), place, gpus=gpus)
        _kubectl("create", "-f", "-", data=json.dumps(manifest))
        name = manifest["metadata"]["name"]
        count = manifest["spec"]["completions"]
        handles += [f"{name}/{index}" for index in range(count)]
    return handles


def manifest_of(specs: Sequence[JobSpec], place: KubernetesPlace, *, gpus: int) -> dict[str, Any]:
    """Return an indexed Job of batch/v1 with one index for each job.

    An index that fails is not tried again and ends no other (`backoffLimitPerIndex`, Kubernetes
    1.29).
    """
    name = f"assay-{secrets.token_hex(5)}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "assay"}},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(specs),
            "parallelism": len(specs),
            "backoffLimitPerIndex": 0,
            "template": {"spec": _pod_of(specs, place, gpus=gpus)},
        },
    }


def _pod_of(specs: Sequence[JobSpec], place: KubernetesPlace, *, gpus: int) -> dict[str, Any]:
    """Return the pod of each index, which runs the job of that number."""
    container: dict[str, Any] = {
        "name": "assay",
        "image": place.image,
        "command": ["sh", "-c", f'{choose_job(specs, "JOB_COMPLETION_INDEX")}\nexec "$@"'],
        "volumeMounts": [
            {"name": "project", "mountPath": place.mount},
            {"name": "memory", "mountPath": "/dev/shm"},
        ],
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
        "containers": [container],
        "volumes": [
            {"name": "project", "persistentVolumeClaim": {"claimName": place.claim}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    limits = [spec.time_limit_s for spec in specs if spec.time_limit_s]
    if limits:
        pod["activeDeadlineSeconds"] = int(max(limits))
    return pod


def _gpus_of(spec: JobSpec) -> int:
    return 0 if spec.device == "cpu" else spec.devices


def _kubectl(*words: str, data: str = "") -> str:
    """Run kubectl; KubernetesError with its own words when it fails."""
    try:
        done = subprocess.run(
            ["kubectl", *words],
            input=data,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except FileNotFoundError:
        raise InputError("There is no `kubectl` here.") from None
    except subprocess.TimeoutExpired:
        raise KubernetesError(f"`kubectl` did not answer for {_PATIENCE_S} s.") from None
    if done.returncode:
        raise KubernetesError(done.stderr.strip() or f"`kubectl` ended with {done.returncode}.")
    return done.stdout
