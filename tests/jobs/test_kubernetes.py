"""Jobs of Kubernetes, through a stand-in for kubectl whose pods are OS processes."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.errors import AssayError, InputError
from assay.jobs.backend import Backend
from assay.jobs.backends.kubernetes import KubernetesBackend, KubernetesPlace, manifest_of
from jobs import kubectl
from jobs.backend_contract import BackendContract, job

PLACE = KubernetesPlace(image="registry.example.org/gpt:1", claim="runs", mount="/project")


@pytest.mark.slow
class TestKubernetes(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
        home = tmp_path / "cluster"
        home.mkdir()
        program = tmp_path / "bin" / "kubectl"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{kubectl.__file__}" "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("KUBECTL_HOME", str(home))
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return KubernetesBackend(PLACE)

    @pytest.fixture
    def unknown(self) -> str:
        return "assay-0a1b2c/0"

    def test_what_kubectl_refuses_is_told_in_its_words(
        self, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bin" / "kubectl").write_text("#!/bin/sh\necho 'no such cluster' >&2\nexit 1\n")

        with pytest.raises(AssayError, match="no such cluster"):
            backend.submit([job("pass", tmp_path)])

    def test_a_handle_of_something_else_is_refused(self, backend: Backend) -> None:
        with pytest.raises(InputError, match="is no job of Kubernetes"):
            backend.logs("--all")


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
