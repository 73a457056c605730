"""Devices of this machine, as its driver lists them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.core.job import TORCH_DEVICES_VARIABLE, JobSpec
from assay.jobs import devices
from assay.jobs.devices import (
    Device,
    NvmlDevices,
    choose_slots,
    driver_uuids,
    job_variables,
)
from assay.store.device_leases import DeviceLease, DeviceSlot, LeaseHolder

GB = 10**9
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


class Nvml:
    """Management library of a machine with two GPUs, of which others use the first."""

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, index: int) -> bytes:
        return b"GPU-aaaa" if index == 0 else b"GPU-bbbb"

    def nvmlDeviceGetMemoryInfo(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GB, used=(30 * GB, GB)[index])


def lease_of(device: Device, memory_bytes: int) -> DeviceLease:
    """Lease of another job that lets two share its device."""
    slot = DeviceSlot(device.key, 0, device.name, 2, memory_bytes)
    return DeviceLease(slot, 1, LeaseHolder(1, "1", "here"))


@pytest.mark.row("A44")
def test_a_gpu_is_leased_by_its_uuid_where_the_forecast_or_a_tenth_of_its_memory_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pool = NvmlDevices().devices()
    assert [(each.name, each.key) for each in pool] == [
        ("cuda:0", "GPU-aaaa"),
        ("cuda:1", "GPU-bbbb"),
    ]

    def chosen(spec: JobSpec, *leases: DeviceLease) -> list[str] | None:
        slots = choose_slots(spec, pool, leases)
        return None if slots is None else [slot.key for slot in slots]

    unknown = JobSpec(command=(), cwd="")
    assert chosen(unknown) == ["GPU-bbbb"]  # somebody uses more than a tenth of the other
    assert chosen(replace(unknown, device="cuda:0")) is None
    assert chosen(replace(unknown, memory_bytes=45 * GB)) == ["GPU-aaaa"]
    assert chosen(replace(unknown, memory_bytes=60 * GB)) == ["GPU-bbbb"]
    assert chosen(replace(unknown, memory_bytes=60 * GB, device="cuda:1,0")) == ["GPU-bbbb"]
    assert chosen(replace(unknown, memory_bytes=80 * GB)) is None

    sharing = replace(unknown, device="cuda:1", per_device=2, memory_bytes=30 * GB)
    assert chosen(sharing, lease_of(pool[1], 45 * GB)) == ["GPU-bbbb"]
    assert chosen(sharing, lease_of(pool[1], 55 * GB)) is None, "promised, though not used yet"
    assert chosen(replace(sharing, per_device=1), lease_of(pool[1], 0)) is None


def test_cores_are_divided_among_the_jobs_that_may_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(devices.CORES_VARIABLE, "16")
    spec = JobSpec(command=(), cwd="", device="cpu", per_device=4)
    slots = choose_slots(spec, [], [])

    assert slots is not None
    assert job_variables(spec, slots, [])["OMP_NUM_THREADS"] == "4"
    own = replace(spec, environment={"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in job_variables(own, slots, [])


@pytest.mark.row("A44")
def test_a_run_on_any_device_sees_its_own_alone_and_chooses_by_itself() -> None:
    """Torch may have been built without CUDA, or know a device that nobody else does."""
    spec = JobSpec(command=(), cwd="")
    pool = [Device(name="cuda:0", key="GPU-aaaa")]

    slots = choose_slots(spec, pool, [])

    assert slots is not None and [slot.key for slot in slots] == ["GPU-aaaa"]
    variables = job_variables(spec, slots, pool)
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa"
    assert variables[TORCH_DEVICES_VARIABLE] == ""

    alone = choose_slots(spec, [], [])
    assert alone is not None and alone[0].name == "cpu"
    assert job_variables(spec, alone, [])[TORCH_DEVICES_VARIABLE] == ""


def test_a_named_gpu_is_the_first_that_its_run_sees() -> None:
    spec = JobSpec(command=(), cwd="", device="cuda:1")
    pool = [Device(name=f"cuda:{i}", key=f"GPU-{i}") for i in range(2)]

    slots = choose_slots(spec, pool, [])

    assert slots is not None
    variables = job_variables(spec, slots, pool)
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert variables[TORCH_DEVICES_VARIABLE] == "cuda:0"


def test_the_cpu_is_as_many_slots_as_it_has_cores_by_the_threads_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(devices.CORES_VARIABLE, "16")
    for threads, slots in ((None, 4), ("1", 16), ("8", 2), ("64", 1), ("", 4)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if threads is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        assert devices.cpu_jobs() == slots


def test_outside_of_the_queue_runs_on_the_cpu_wait_for_those_of_their_command_alone() -> None:
    spec = JobSpec(command=(), cwd="", device="cpu", per_device=2)
    first = devices.choose_own_slot(spec, [])
    assert first is not None
    second = devices.choose_own_slot(spec, first)

    assert second is not None and second[0].number == 1
    assert devices.choose_own_slot(spec, [*first, *second]) is None
    assert devices.choose_own_slot(spec, second) == first
