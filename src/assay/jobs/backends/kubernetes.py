"""Backend of Kubernetes: indexed Jobs, made, read and ended by kubectl."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from assay.core.errors import AssayError, InputError
from assay.core.job import JobSpec, JobState, JobStatus, classify, describe_end
from assay.jobs.backends.job_script import choose_job

GRACE_S = 120
"""Seconds that a run has to save after SIGTERM."""

_PATIENCE_S = 60
_TAIL_LINES = 500
_SIGNALLED = 128
_CANCELLED = "assay.cancelled"
_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB_NAME = "batch.kubernetes.io/job-name"
_HANDLE = re.compile(r"([a-z][a-z0-9-]{0,62})/(\d{1,6})", re.ASCII)


class KubernetesError(AssayError):
    """Refusal of kubectl, in its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesPlace:
    """Image in which jobs run, and the volume claim with project and runs, mounted at `mount`."""

    image: str
    claim: str
    mount: str


class KubernetesBackend:
    """Jobs of a cluster, each an index of an indexed Job; a handle is `NAME/INDEX`.

    Cluster and namespace are those of kubectl's current context. A job that is cancelled loses its
    log with its pod; the record of its run stays.
    """

    def __init__(self, place: KubernetesPlace) -> None:
        self.place = place

    def submit(self, specs: Sequence[JobSpec]) -> list[str]:
        """Make one indexed Job for each stretch of jobs that ask for the same resources."""
        handles: list[str] = []
        for gpus, alike in groupby(specs, key=_gpus_of):
            manifest = manifest_of(list(alike), self.place, gpus=gpus)
            _kubectl("create", "-f", "-", data=json.dumps(manifest))
            name = manifest["metadata"]["name"]
            count = manifest["spec"]["completions"]
            handles += [f"{name}/{index}" for index in range(count)]
        return handles

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return the states of jobs, from those of their pods."""
        found: dict[str, JobStatus] = {}
        for name, indices in _by_name(handles).items():
            job = _get("job", name)
            if job is None:
                continue
            pods = self._pods(name)
            annotations = job["metadata"].get("annotations") or {}
            cancelled = set(filter(None, annotations.get(_CANCELLED, "").split(",")))
            for index in indices:
                if int(index) < job["spec"]["completions"]:
                    pod = pods.get(index)
                    status = self._status(pod, is_cancelled=index in cancelled)
                    found[f"{name}/{index}"] = _with_times(status, pod)
        return found

    def cancel(self, handles: Sequence[str]) -> None:
        """End jobs: their pods get SIGTERM, and SIGKILL after `GRACE_S`."""
        states = self.poll(handles)
        alive = [handle for handle, status in states.items() if not status.is_ended]
        for name, indices in _by_name(alive).items():
            job = _get("job", name) or {"metadata": {}}
            before = (job["metadata"].get("annotations") or {}).get(_CANCELLED, "")
            wanted = ",".join(sorted({*filter(None, before.split(",")), *indices}))
            _kubectl("annotate", "--overwrite", "job", name, f"{_CANCELLED}={wanted}")
            chosen = f"{_JOB_NAME}={name},{_INDEX} in ({','.join(indices)})"
            _kubectl("delete", "pods", "--wait=false", "-l", chosen)

    def logs(self, handle: str) -> str:
        """Return what a job has printed; "" once its pod is gone."""
        ((name, (index,)),) = _by_name([handle]).items()
        pod = self._pods(name).get(index)
        if pod is None or _phase(pod) == "Pending":
            return ""
        return _kubectl("logs", pod["metadata"]["name"])

    def _pods(self, name: str) -> dict[str, Any]:
        """Return the newest pod of each index of a Job."""
        said = json.loads(_kubectl("get", "pods", "-l", f"{_JOB_NAME}={name}", "-o", "json"))
        pods = sorted(said["items"], key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        return {pod["metadata"]["labels"][_INDEX]: pod for pod in pods}

    def _status(self, pod: Any, *, is_cancelled: bool) -> JobStatus:
        phase = _phase(pod) if pod is not None else "Pending"
        if phase == "Succeeded":
            return JobStatus(state="finished", attempt=1, exit_code=0)
        if is_cancelled:
            return JobStatus(state="cancelled", attempt=1)
        if phase in ("Pending", "Running"):
            state: JobState = "running" if phase == "Running" else "waiting"
            return JobStatus(state=state, attempt=int(phase == "Running"))
        ended = _end_of_container(pod)
        code = ended.get("exitCode")
        number = code - _SIGNALLED if code is not None and code > _SIGNALLED else 0
        code = None if number else code
        said = _kubectl("logs", f"--tail={_TAIL_LINES}", pod["metadata"]["name"])
        is_oom = ended.get("reason") == "OOMKilled"
        return JobStatus(
            state="failed",
            attempt=1,
            exit_code=code,
            signal=number,
            failure="out-of-memory" if is_oom else classify(code, number, said),
            reason="OOMKilled" if is_oom else describe_end(code, number),
        )


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


def _by_name(handles: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for handle in handles:
        match = _HANDLE.fullmatch(handle)
        if match is None:
            fix = "handles look like assay-0a1b2c/0"
            raise InputError(f"`{handle}` is no job of Kubernetes.", fix=fix)
        found.setdefault(match[1], []).append(match[2])
    return found


def _phase(pod: Any) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _end_of_container(pod: Any) -> dict[str, Any]:
    for container in pod["status"].get("containerStatuses") or ():
        found: dict[str, Any] = container.get("state", {}).get("terminated") or {}
        return found
    return {}


def _with_times(status: JobStatus, pod: Any) -> JobStatus:
    """Return a state with the times of its pod."""
    if pod is None:
        return status
    found = pod.get("status", {})
    ended = _end_of_container(pod) if found else {}
    return replace(
        status,
        created_ns=_ns(pod["metadata"].get("creationTimestamp")),
        started_ns=_ns(found.get("startTime")),
        ended_ns=_ns(ended.get("finishedAt")),
    )


def _ns(text: str | None) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 10**9 if text else 0


def _get(kind: str, name: str) -> Any:
    """Return an object of the cluster, None if there is none of that name."""
    said = _kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
    return json.loads(said) if said.strip() else None


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
