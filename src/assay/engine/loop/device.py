"""The device and the number of threads that a run uses."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from assay.core.devices import cores
from assay.core.errors import InputError, did_you_mean

Device = torch.device

SMALL_MODEL = 5_000_000
"""Parameters up to which one CPU thread is the better choice: more of them wait for each other."""


def pick_device(name: str | None, *, must_exist: bool = True) -> torch.device:
    """Return the device `name`; None picks the accelerator if there is one, else the CPU.

    InputError if this machine lacks the device. Unless `must_exist`, a device of another machine is
    accepted.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind = name.split(":")[0]
    if kind not in ("cpu", "cuda", "mps"):
        fix = (
            did_you_mean("cuda" if kind == "gpu" else kind, ["cpu", "cuda", "mps"])
            or "devices are cpu, cuda, cuda:1, mps"
        )
        raise InputError(f"There is no device {name!r}.", fix=fix)
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not must_exist and name.partition(":")[2].isdecimal() | (name == kind):
        return torch.device(name)
    if not available[kind]:
        raise InputError(
            f"There is no device {name!r}: torch finds no {kind} device on this machine.",
            fix="Use --device cpu, or install a build of torch for the device: pytorch.org.",
        )
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"There is no device {name!r}: {error}") from error
    count = torch.cuda.device_count()
    if kind == "cuda" and (device.index or 0) >= count:
        last = f" to cuda:{count - 1}" if count > 1 else ""
        raise InputError(
            f"There is no device {name!r}: this machine has {count}.", fix=f"Use cuda:0{last}."
        )
    return device


def memory_of(device: torch.device) -> int | None:
    """Return the memory of an accelerator of this machine in bytes; None for any other device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    index = device.index or 0
    if index >= torch.cuda.device_count():
        return None
    return int(torch.cuda.get_device_properties(index).total_memory)


def device_count() -> int:
    """Devices that this machine computes on: its accelerators, or the one CPU."""
    return max(1, torch.cuda.device_count())


def pick_threads(wanted: int | str, model: nn.Module, *, ranks: int = 1) -> int:
    """Return the CPU threads of one of `ranks` OS processes on this machine.

    "auto" gives a small model one thread, any other its rank's share of the cores. More threads
    than cores wait for each other: two ranks with two threads each take 1.5 times as long on two
    cores.
    """
    if isinstance(wanted, int):
        return wanted
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return 1 if parameters <= SMALL_MODEL else max(1, cores() // ranks)


def use_threads(wanted: int | str, model: nn.Module, *, ranks: int = 1) -> None:
    """Give torch the threads of `pick_threads`."""
    torch.set_num_threads(pick_threads(wanted, model, ranks=ranks))


def without_memory() -> AbstractContextManager[Any]:
    """Within it tensors have a shape and no values."""
    return torch.device("meta")


def threads_in_use() -> int:
    """CPU threads that torch computes with."""
    return torch.get_num_threads()


def channels_last(model: nn.Module) -> None:
    """Store convolution weights, and images given to the model, with their channels last."""

    def make_channels_last(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
            return value.contiguous(memory_format=torch.channels_last)
        return value

    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.register_forward_pre_hook(
        lambda _, args: tuple(make_channels_last(each) for each in args)
    )


def place(owner: object, device: torch.device) -> None:
    """Move every module among the attributes of `owner` to the device.

    The owner is a process; its modules are the model and the criterion.
    """
    for part in getattr(owner, "__dict__", {}).values():
        if isinstance(part, nn.Module):
            move(part, device)


def move(module: nn.Module, device: torch.device) -> None:
    """Move a module to the device, unless all of it is there."""
    if any(not is_on(tensor, device) for tensor in (*module.parameters(), *module.buffers())):
        module.to(device)


def is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Return True if the tensor is on the device; `cuda` without an index is the first."""
    return tensor.device.type == device.type and (tensor.device.index or 0) == (device.index or 0)
