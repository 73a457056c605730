"""Jobs of Kubernetes, through a stand-in for kubectl whose pods are OS processes."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.errors import AssayError
from assay.core.job import JobSpec
from assay.jobs.backends.kubernetes import KubernetesPlace, manifest_of, submit_to_kubernetes
from jobs import kubectl

PLACE = KubernetesPlace(image="registry.example.org/gpt:1", claim="runs", mount="/project")


def job(code: str, folder: Path, *words: str) -> JobSpec:
    """Return a job that runs a line of Python in a folder."""
    command = (sys.executable, "-c", code, *words)
    return JobSpec(command=command, cwd=str(folder), device="cpu")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the stand-in, in which the output of each pod lies."""
    home = tmp_path / "cluster"
    home.mkdir()
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{kubectl.__file__}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("KUBECTL_HOME", str(home))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return home


def outputs(cluster: Path, handles: Sequence[str]) -> list[str]:
    """Return what pods have printed, once all of them have ended."""
    pods = [cluster / handle.replace("/", "-") for handle in handles]
    until = time.monotonic() + 180
    while not all(Path(f"{pod}.code").exists() for pod in pods):
        assert time.monotonic() < until, pods
        time.sleep(0.1)
    return [Path(f"{pod}.log").read_text().strip() for pod in pods]


@pytest.mark.slow
def test_each_job_has_its_own_words_folder_and_variables(cluster: Path, tmp_path: Path) -> None:
    words = ["a b", "$HOME", "`x`", "it's", 'say "x"', "*", "\\"]
    code = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ.get('VALUE'))"
    folder = tmp_path / "a folder"
    folder.mkdir()
    special = replace(job(code, folder, *words), environment={"VALUE": "$(touch x) 'y'"})

    handles = submit_to_kubernetes([special, job(code, tmp_path)], PLACE)

    assert [handle.partition("/")[2] for handle in handles] == ["0", "1"]
    assert outputs(cluster, handles) == [
        f"{words} {folder} $(touch x) 'y'",
        f"[] {tmp_path} None",
    ]


def test_what_kubectl_refuses_is_told_in_its_words(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "kubectl").write_text("#!/bin/sh\necho 'no such cluster' >&2\nexit 1\n")

    with pytest.raises(AssayError, match="no such cluster"):
        submit_to_kubernetes([job("pass", tmp_path)], PLACE)


def test_the_manifest_is_one_of_the_official_schema(tmp_path: Path) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    import kubernetes_validate

    specs = [replace(job("pass", tmp_path), device="auto", time_limit_s=60.0)] * 3
    manifest = manifest_of(specs, PLACE, gpus=2)

    kubernetes_validate.validate(manifest, kubectl.VERSION, strict=True)
    manifest["spec"]["paralelism"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, kubectl.VERSION, strict=True)


def test_the_manifest_asks_for_an_index_and_gpus_for_each_job(tmp_path: Path) -> None:
    specs = [replace(job("pass", tmp_path), device="auto")] * 3
    manifest = manifest_of(specs, PLACE, gpus=2)

    assert manifest["kind"] == "Job" and manifest["apiVersion"] == "batch/v1"
    assert manifest["spec"]["completionMode"] == "Indexed"
    assert manifest["spec"]["completions"] == manifest["spec"]["parallelism"] == 3
    pod = manifest["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}
