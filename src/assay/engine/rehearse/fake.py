"""Private parts of PyTorch that a rehearsal needs. No other module of this package uses any.

Each has its reason, and what happens without it, where it is imported. Tried with 2.6 to 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.numerics import private_torch
from assay.engine.numerics.private_torch import (
    DTENSOR_PROPAGATION,
    can_see_operations,
    fake_store,
)

_DATA_DEPENDENT_TYPES = ("DataDependentOutputException", "DynamicOutputShapeException")
_UNFAKEABLE_TYPES = (
    *_DATA_DEPENDENT_TYPES,
    "UnsupportedFakeTensorException",
    "UnsupportedMutationAliasingException",
    "UnsupportedOperatorException",
    "GuardOnDataDependentSymNode",
)
_UNFAKEABLE_WORDS = (
    "FakeTensor",
    "fake tensor",
    "fake_impl",
    "meta tensor",
    "Meta tensor",
    "Cannot access data pointer",
    "data is not allocated yet",
    "doesn't have storage",
    "not linked with support for",
    "is not supported for tensor subclasses",
)


def can_fake() -> bool:
    """Return True if this torch has fake tensors and shows its operations."""
    names = (private_torch.FakeTensorMode, private_torch.unset_fake_temporarily)
    return can_see_operations() and None not in names


def is_fake(value: object) -> bool:
    return private_torch.FakeTensor is not None and isinstance(value, private_torch.FakeTensor)


def is_foreign(kinds: Sequence[type]) -> bool:
    """Return True if one of these tensor classes dispatches by itself, as DTensor does."""
    return any(
        kind.__torch_dispatch__ is not Tensor.__torch_dispatch__  # type: ignore[attr-defined]
        for kind in kinds
        if private_torch.FakeTensor is None or not issubclass(kind, private_torch.FakeTensor)
    )


def is_unfakeable(error: BaseException) -> bool:
    """Return True if `error` says that fake tensors cannot do it, not that the code is wrong."""
    if isinstance(error, NotImplementedError) or type(error).__name__ in _UNFAKEABLE_TYPES:
        return True
    said = str(error)
    return any(word in said for word in _UNFAKEABLE_WORDS)


def is_data_dependent(error: BaseException) -> bool:
    """Return True if `error` says that an operation needs values that a fake tensor has not."""
    return type(error).__name__ in _DATA_DEPENDENT_TYPES


def is_device_mismatch(error: BaseException) -> bool:
    """Return True if `error` is about tensors of different devices in one operation."""
    said = str(error)
    return type(error).__name__ == "FakeTensorDeviceMismatchError" or (
        isinstance(error, RuntimeError)
        and ("same device" in said or "two different devices" in said)
    )


STAND_IN = torch.device("cpu")
"""Device of the tensors of a trial, on every machine and for every device of a run.

The backward pass of fake CUDA tensors asks CUDA for its streams, and ends the process where there
is none; what a machine with a GPU says of a config is what one without says.
"""


class Fakes:
    """Fake tensors of one rehearsal, all of one mode: those of two cannot be mixed."""

    def __init__(self) -> None:
        if not can_fake():
            raise InputError(
                f"torch {torch.__version__} has no fake tensors.", fix="Install torch 2.6 or newer."
            )
        self.mode = private_torch.new_fake_mode()

    def of(self, tensor: Tensor) -> Any:
        """Return the fake tensor that stands for `tensor`, the same one each time."""
        return tensor if is_fake(tensor) else self.mode.from_tensor(tensor, static_shapes=True)

    def real(self) -> AbstractContextManager[Any]:
        """Compute for real within, in the middle of a trial."""
        context: AbstractContextManager[Any] = private_torch.unset_fake_temporarily()
        return context

    def place(self, model: nn.Module, device: torch.device) -> None:
        """Make all parameters and buffers of `model` fake and put them on `device`, in place.

        `Module.to` of torch before 2.13 would separate tied ones.
        """
        placed: dict[int, tuple[Tensor, Any]] = {}
        for module in model.modules():
            for tensors in (private_torch.parameters_of(module), private_torch.buffers_of(module)):
                for name, tensor in tensors.items():
                    if tensor is None:
                        continue
                    if id(tensor) not in placed:
                        placed[id(tensor)] = tensor, self._place_one(tensor, device)
                    tensors[name] = placed[id(tensor)][1]

    def _place_one(self, tensor: Tensor, device: torch.device) -> Any:
        fake = self.of(tensor)
        if fake.device.type == device.type:
            return fake
        with self.mode, torch.no_grad():
            moved = fake.to(device)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(moved, requires_grad=tensor.requires_grad)
        return moved

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make new tensors fake within."""
        with private_torch.with_fakes(self.mode), self.mode:
            yield


def can_imagine_world() -> bool:
    """Return True if this torch has process groups of one process."""
    return dist.is_available() and fake_store() is not None


def is_propagating() -> bool:
    """Return True while DTensor finds out the shape of a result, on fake tensors of its own.

    They are no memory of the step. Torch shows that by nothing but the frames of the call.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == DTENSOR_PROPAGATION:
            return True
        frame = frame.f_back
    return False


class _Sent:
    """Work of a send. It keeps its tensor until it is dropped, as that of gloo and of NCCL does."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self.work = work
        self.tensor = tensor

    def wait(self) -> None:
        """Wait for nobody: there is no other process."""
        self.work.wait()


@contextmanager
def imagined_world(rank: int, size: int) -> Iterator[None]:
    """Be rank `rank` of `size` in a process group without other processes.

    A received tensor is all ones. Torch receives the votes of pipeline stages that way (2.13): 1
    says that a stage knows its shapes. Nothing else is received by `recv` during a rehearsal.
    """
    store = fake_store()
    dist.init_process_group("fake", store=store(), rank=rank, world_size=size)
    plain_receive, plain_send = dist.recv, dist.isend

    def receive(tensor: Tensor, *_: Any, **__: Any) -> int:
        tensor.fill_(1)
        return 0

    def send(tensor: Tensor, *given: Any, **named: Any) -> _Sent:
        return _Sent(plain_send(tensor, *given, **named), tensor)

    dist.recv = receive
    # In both places: a `P2POp` takes no function but the one of its own module.
    dist.isend = dist.distributed_c10d.isend = send  # type: ignore[assignment]
    try:
        yield
    finally:
        dist.recv = plain_receive
        dist.isend = dist.distributed_c10d.isend = plain_send
        dist.destroy_process_group()


@contextmanager
def watched_resizes(saw: Callable[[Any], None]) -> Iterator[None]:
    """Call `saw` with every storage that is resized: FSDP2 frees gathered weights that way.

    A resize is no operation, so a dispatch mode does not see it. `UntypedStorage.resize_` is
    public; replacing it for a while is what torch's own memory tracker of FSDP2 does.
    """
    plain = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        done = plain(storage, size)
        saw(storage)
        return done

    torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain  # type: ignore[method-assign]
