"""Leases of devices: slots that jobs and runs share, and their holders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from assay.core.job import Job
from assay.formats.lease import process_start, this_place


class LeaseHolder(NamedTuple):
    """OS process, the leader of its process group, that holds a device or runs a job.

    `process_start` tells two processes of one pid apart, `place` two boots and pid namespaces.
    """

    pid: int
    process_start: str
    place: str


class DeviceSlot(NamedTuple):
    """One slot of a device, which is known by its `key`; at most `shared_by` jobs share the device.

    `memory_bytes` is the memory promised to the holder, 0 if unknown.
    """

    key: str
    number: int
    name: str
    shared_by: int = 1
    memory_bytes: int = 0


class QueueDevice(NamedTuple):
    """Device that the dispatcher gives to jobs; `total_bytes` is 0 where nobody can say."""

    key: str
    name: str
    shared_by: int = 1
    total_bytes: int = 0


class DeviceLease(NamedTuple):
    """Right of one holder to a slot of a device; `job` is 0 for a run outside of the queue.

    `since_ns` is Unix time.
    """

    slot: DeviceSlot
    job: int
    holder: LeaseHolder
    since_ns: int = 0


Choose = Callable[[Sequence[DeviceLease]], Sequence[DeviceSlot] | None]
"""Choice of slots, given all leases; None while nothing suitable is free."""


class RunningJob(NamedTuple):
    """Job that is running, with what its dispatcher needs to judge it.

    `started_boot_ns` is on the clock that counts since the boot, which nobody sets.
    """

    job: Job
    holder: LeaseHolder
    is_cancelled: bool
    started_boot_ns: int


def holder_of(pid: int) -> LeaseHolder:
    """Return the holder for a living OS process of this machine."""
    return LeaseHolder(pid, process_start(pid) or "", this_place())
