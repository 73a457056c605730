"""Devices of this machine, as its driver lists them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from assay.core.job import JobSpec
from assay.jobs import devices
from assay.jobs.devices import (
    Device,
    NvmlDevices,
    choose_slots,
    driver_uuids,
    job_variables,
)

INFORMATION = """Model: 		 NVIDIA H100 80GB HBM3
IRQ:   		 200
GPU UUID: 	 GPU-{uuid}
Bus Type: 	 PCIe
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver that lists two GPUs, on a machine without the management library."""
    for address, uuid in (("0000:4d:00.0", "bbbb"), ("0000:1b:00.0", "aaaa")):
        folder = tmp_path / address
        folder.mkdir()
        (folder / "information").write_text(INFORMATION.format(uuid=uuid))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_DRIVER", tmp_path)
    return tmp_path


def test_without_nvml_gpus_are_those_that_the_driver_lists_by_the_order_of_the_bus(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert driver_uuids(driver) == ["GPU-aaaa", "GPU-bbbb"]
    assert [(each.name, each.key) for each in NvmlDevices().devices()] == [
        ("cuda:0", "GPU-aaaa"),
        ("cuda:1", "GPU-bbbb"),
    ]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [each.key for each in NvmlDevices().devices()] == ["GPU-bbbb"]


def test_a_run_on_any_device_sees_its_own_alone_and_chooses_by_itself() -> None:
    """Torch may have been built without CUDA, or know a device that nobody else does."""
    spec = JobSpec(command=(), cwd="")
    pool = [Device(name="cuda:0", key="GPU-aaaa")]

    slots = choose_slots(spec, pool, [])

    assert slots is not None and [slot.key for slot in slots] == ["GPU-aaaa"]
    variables = job_variables(spec, slots, pool)
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa"
    assert variables[devices.TORCH_DEVICES_VARIABLE] == ""

    alone = choose_slots(spec, [], [])
    assert alone is not None and alone[0].name == "cpu"
    assert job_variables(spec, alone, [])[devices.TORCH_DEVICES_VARIABLE] == ""


def test_a_named_gpu_is_the_first_that_its_run_sees() -> None:
    spec = JobSpec(command=(), cwd="", device="cuda:1")
    pool = [Device(name=f"cuda:{i}", key=f"GPU-{i}") for i in range(2)]

    slots = choose_slots(spec, pool, [])

    assert slots is not None
    variables = job_variables(spec, slots, pool)
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert variables[devices.TORCH_DEVICES_VARIABLE] == "cuda:0"
