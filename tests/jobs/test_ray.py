"""Jobs of a real Ray on this machine."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.errors import MissingExtraError
from assay.jobs.backends.ray import RayBackend
from jobs.backend_contract import BackendContract, await_jobs, job

HAS_RAY = importlib.util.find_spec("ray") is not None


def test_ray_names_its_extra_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingExtraError, match="needs the extra `ray`"):
        RayBackend(tmp_path)


@pytest.mark.thorough
@pytest.mark.skipif(not HAS_RAY, reason="there is no Ray here: pip install 'assay[ray]'")
@pytest.mark.filterwarnings("ignore")  # those of Ray's own threads and files
class TestRay(BackendContract):
    @pytest.fixture(scope="class")
    def cluster(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        import ray

        src = os.pathsep.join(sys.path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONBREAKPOINT", "")  # Ray sets it, and leaves it set
            ray.init(
                num_cpus=4,
                num_gpus=2,
                include_dashboard=False,
                logging_level="ERROR",
                log_to_driver=False,
                # With an environment of its own Ray starts workers by a line of the shell, unquoted.
                runtime_env={
                    "env_vars": {"PYTHONPATH": src},
                    "py_executable": shlex.quote(sys.executable),
                },
            )
            yield
            ray.shutdown()

    @pytest.fixture
    def backend(self, cluster: None, tmp_path: Path) -> RayBackend:
        return RayBackend(tmp_path / "ray files")

    def test_no_two_jobs_hold_one_gpu(self, backend: RayBackend, tmp_path: Path) -> None:
        code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(1)"
        spec = replace(job(code, tmp_path), device="auto")
        handles = backend.submit([spec] * 2)

        await_jobs(backend, handles)

        assert sorted(backend.logs(each).strip() for each in handles) == ["0", "1"]
