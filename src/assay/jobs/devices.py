"""Devices of this machine that jobs lease: GPUs by UUID, and cores for jobs on the CPU."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from assay.core.devices import cores, device_names
from assay.core.errors import InputError
from assay.core.job import JOB_DEVICES_VARIABLE, TORCH_DEVICES_VARIABLE, JobSpec
from assay.store.device_leases import DeviceLease, DeviceSlot

CPU = "cpu"
FAKE_VARIABLE = "ASSAY_FAKE_DEVICES"
CORES_VARIABLE = "ASSAY_CORES"
BUSY_SHARE = 0.1
"""Share of a device's memory above which it counts as used by somebody else."""

_GB = 10**9
_DRIVER = Path("/proc/driver/nvidia/gpus")
_CORES_OF_JOB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device as it is now. `key` is what is leased: a UUID, which no renumbering changes.

    `total_bytes` is 0 where nobody can say; then memory is not looked at. A job on a device that
    `is_fake` trains on the CPU.
    """

    name: str
    key: str
    total_bytes: int = 0
    used_bytes: int = 0
    is_fake: bool = False


class DevicePool(Protocol):
    """Source of the machine's accelerators."""

    def devices(self) -> Sequence[Device]:
        """Return the accelerators with the memory that is used now."""
        ...


def _open_nvml() -> Any:
    """Return the module `pynvml`, initialized; None where it or the driver is missing."""
    try:
        pynvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


class NvmlDevices:
    """Accelerators by NVIDIA's management library.

    Without the package `nvidia-ml-py` they are those that the driver lists, and nobody looks at
    their memory. Names count what CUDA_VISIBLE_DEVICES leaves, in the order of the PCI bus.
    """

    def __init__(self) -> None:
        self._nvml = _open_nvml()

    def devices(self) -> Sequence[Device]:
        if self._nvml is None:
            uuids = driver_uuids(_DRIVER)
            return [
                Device(name=f"cuda:{number}", key=uuids[index])
                for number, index in enumerate(_visible(uuids))
            ]
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        devices = []
        for number, index in enumerate(_visible(uuids)):
            memory = nvml.nvmlDeviceGetMemoryInfo(handles[index])
            devices.append(
                Device(
                    name=f"cuda:{number}",
                    key=uuids[index],
                    total_bytes=int(memory.total),
                    used_bytes=int(memory.used),
                )
            )
        return devices


class FakeDevices:
    """Devices that exist in name only, for trials of the queue on a machine without any.

    `text` is a number, or `NAME=USED/TOTAL` in GB, separated by commas.

    >>> FakeDevices("2").devices()[1].name
    'cuda:1'
    >>> FakeDevices("cuda:0=70/80").devices()[0].used_bytes
    70000000000
    """

    def __init__(self, text: str) -> None:
        words = [f"cuda:{i}=0/80" for i in range(int(text))] if text.isdigit() else text.split(",")
        self._devices = [_fake(word.strip()) for word in words]

    def devices(self) -> Sequence[Device]:
        return self._devices


def driver_uuids(folder: Path) -> list[str]:
    """Return the UUIDs of the GPUs that NVIDIA's driver lists, in the order of the PCI bus."""
    texts = [file.read_text("utf-8", "replace") for file in sorted(folder.glob("*/information"))]
    matches = [re.search(r"^GPU UUID:\s*(GPU-\S+)", text, re.MULTILINE) for text in texts]
    return [each[1] for each in matches if each is not None]


def this_machine() -> DevicePool:
    """Return the pool of this machine, or the fake one of ASSAY_FAKE_DEVICES."""
    fake = os.environ.get(FAKE_VARIABLE)
    return FakeDevices(fake) if fake else NvmlDevices()


def cores_of_jobs() -> int:
    """Return the CPU cores that all jobs together may use; ASSAY_CORES overrides."""
    given = os.environ.get(CORES_VARIABLE, "")
    return int(given) if given.isdigit() and int(given) else cores()


def wanted_devices(spec: JobSpec, pool: Sequence[Device]) -> list[Device]:
    """Return the devices that a job may have, preferred ones first.

    A name that the pool does not know, such as "mps", stands for itself: nobody looks at its
    memory. InputError for a device that cannot be there, or more devices than there are.
    """
    if spec.device == "auto":
        devices = list(pool) or [_cpu()]
    else:
        known = {device.name: device for device in pool}
        kinds = {device.name.partition(":")[0] for device in pool}
        devices = []
        for name in device_names(spec.device):
            if name == "cpu":
                devices.append(_cpu())
            elif name in kinds:
                devices += [each for each in pool if each.name.startswith(f"{name}:")]
            elif name in known:
                devices.append(known[name])
            elif name.partition(":")[0] in kinds:
                raise InputError(f"There is no device {name}.", fix=f"there are {', '.join(known)}")
            else:
                devices.append(Device(name=name, key=name))
    if spec.devices > len(devices):
        raise InputError(
            f"The job wants {spec.devices} devices of {spec.device}, and there are {len(devices)}."
        )
    return devices


def choose_slots(
    spec: JobSpec, pool: Sequence[Device], leases: Sequence[DeviceLease]
) -> list[DeviceSlot] | None:
    """Return free slots of devices for a job, or None while there are too few.

    A device is free when a slot of it is, and its memory is: the forecast fits beside what is used
    and promised, or, without a forecast, nobody else uses more than `BUSY_SHARE`.
    """
    chosen: list[DeviceSlot] = []
    for device in wanted_devices(spec, pool):
        held = [lease for lease in leases if lease.slot.key == device.key]
        shared_by = spec.per_device or (cpu_jobs() if device.name == "cpu" else 1)
        most = min([shared_by, *(lease.slot.shared_by for lease in held)])
        if len(held) < most and _has_memory(device, spec, held):
            taken = {lease.slot.number for lease in held}
            number = next(i for i in range(most) if i not in taken)
            slot = DeviceSlot(device.key, number, device.name, shared_by, spec.memory_bytes)
            chosen.append(slot)
        if len(chosen) == spec.devices:
            return chosen
    return None


def cpu_jobs() -> int:
    """Return how many jobs share the CPU, unless a job says otherwise.

    That is its cores by the threads of a job: OMP_NUM_THREADS, else four.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    each = int(threads) if threads.isdecimal() and int(threads) else _CORES_OF_JOB
    return max(1, cores_of_jobs() // each)


def choose_own_slot(spec: JobSpec, own: Sequence[DeviceSlot]) -> list[DeviceSlot] | None:
    """Return a free slot of the CPU beside the `own` ones of a launcher, None while there is none.

    Outside of the queue, runs on the CPU wait for those of the same command alone: the system
    divides its cores among all others.
    """
    shared_by = spec.per_device or cpu_jobs()
    free = sorted(set(range(shared_by)) - {slot.number for slot in own if slot.key == CPU})
    return [DeviceSlot(CPU, free[0], CPU, shared_by, 0)] if free else None


def job_variables(
    spec: JobSpec, slots: Sequence[DeviceSlot], pool: Sequence[Device]
) -> dict[str, str]:
    """Return variables by which a job sees its devices alone, and its share of the cores.

    OMP_NUM_THREADS that the user has set stays.
    """
    keys = [slot.key for slot in slots]
    leased = [device for device in wanted_devices(spec, pool) if device.key in keys]
    real = [each for each in leased if not each.is_fake and each.key != each.name]
    if any(each.is_fake for each in leased):
        names = "cpu"
    elif spec.device == "auto":
        names = ""  # the run takes the one it sees: torch may have been built without CUDA
    elif real:
        names = ",".join(f"cuda:{i}" for i in range(len(real)))
    else:
        names = ",".join(each.name for each in leased[:1])
    variables = {
        JOB_DEVICES_VARIABLE: ",".join(slot.name for slot in slots),
        TORCH_DEVICES_VARIABLE: names,
    }
    if real:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(each.key for each in real)
    if "OMP_NUM_THREADS" not in spec.environment:
        at_once = sum(slot.shared_by for slot in slots[:1]) * max(1, len(pool))
        variables["OMP_NUM_THREADS"] = str(max(1, cores_of_jobs() // at_once))
    return variables


def _has_memory(device: Device, spec: JobSpec, held: Sequence[DeviceLease]) -> bool:
    if not device.total_bytes:
        return True
    free = device.total_bytes - device.used_bytes
    if spec.memory_bytes:
        promised = sum(lease.slot.memory_bytes for lease in held)
        return min(free, device.total_bytes - promised) >= spec.memory_bytes
    return bool(held) or device.used_bytes <= BUSY_SHARE * device.total_bytes


def _cpu() -> Device:
    return Device(name=CPU, key=CPU)


def _fake(word: str) -> Device:
    match = re.fullmatch(r"(?P<name>[a-z]+:\d+)(=(?P<used>[\d.]+)/(?P<total>[\d.]+))?", word)
    if match is None:
        raise InputError(
            f"{FAKE_VARIABLE} has no device in {word!r}.", fix="write 2, or cuda:0=70/80,cuda:1"
        )
    used, total = (float(match[part] or default) for part, default in (("used", 0), ("total", 80)))
    return Device(
        name=match["name"],
        key=f"fake {match['name']}",
        total_bytes=int(total * _GB),
        used_bytes=int(used * _GB),
        is_fake=True,
    )


def _visible(uuids: Sequence[str]) -> list[int]:
    """Return the indices of the devices that CUDA_VISIBLE_DEVICES leaves, in its order."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return list(range(len(uuids)))
    indices: list[int] = []
    for word in filter(None, (part.strip() for part in given.split(","))):
        matching = [i for i, uuid in enumerate(uuids) if word == str(i) or uuid.startswith(word)]
        if not matching:
            break  # CUDA, too, ignores everything after the first that is not there
        indices.append(matching[0])
    return indices


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value
