"""What is written down about the environment."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from assay.record.environment import VARIABLES, environment, gpus, packages


def test_versions_are_those_that_the_installed_packages_report() -> None:
    found = packages(sys.path)

    for name in ("pytest", "numpy", "hypothesis", "typing-extensions"):
        assert found[name] == importlib.metadata.version(name)


def test_of_a_package_that_is_there_twice_the_one_that_is_imported_counts(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    first, second = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    (first / "some_thing-2.0.dist-info").mkdir()
    (second / "Some_Thing-1.0.dist-info").mkdir()
    (second / "other-3.dist-info").mkdir()

    assert packages([str(first), "/nowhere", str(second)]) == {"other": "3", "some-thing": "2.0"}


def test_only_listed_variables_are_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")

    found = environment()

    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert "hunter2" not in json.dumps(found)
    assert set(found["variables"]) <= set(VARIABLES)


def test_torch_is_looked_at_only_when_it_is_loaded_already() -> None:
    program = (
        "import sys; from assay.record.environment import environment\n"
        "assert 'torch' not in environment() and 'torch' not in sys.modules"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_loaded_torch_tells_its_version_threads_and_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = ModuleType("torch")
    told = {
        "__version__": "9.9+cpu",
        "version": SimpleNamespace(cuda=None),
        "get_num_threads": lambda: 1,
        "get_num_interop_threads": lambda: 2,
        "are_deterministic_algorithms_enabled": lambda: True,
        "get_float32_matmul_precision": lambda: "highest",
        "backends": SimpleNamespace(
            cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2"),
            cudnn=SimpleNamespace(deterministic=True, benchmark=False),
        ),
        "cuda": SimpleNamespace(is_initialized=lambda: False),
    }
    for name, value in told.items():
        setattr(torch, name, value)
    monkeypatch.setitem(sys.modules, "torch", torch)

    found = environment()["torch"]

    assert (found["version"], found["threads"], found["deterministic"]) == ("9.9+cpu", 1, True)
    assert found["cpu"] == "AVX2"
    assert "devices" not in found


@pytest.mark.slow
def test_the_real_torch_answers_too() -> None:
    torch = pytest.importorskip("torch")

    assert environment()["torch"]["version"] == torch.__version__


def test_it_is_plain_data() -> None:
    found = environment()

    assert json.loads(json.dumps(found)) == found


def test_gpus_and_their_driver_are_read_from_the_kernel(tmp_path: Path) -> None:
    assert gpus(tmp_path / "none") == {}
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
        (tmp_path / "gpus" / name / "information").write_text(
            "Model: \t\t NVIDIA H200\nIRQ:   110\n"
        )
    version = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    )
    (tmp_path / "version").write_text(version)

    assert gpus(tmp_path) == {"gpus": ["NVIDIA H200", "NVIDIA H200"], "driver": "550.54.15"}
