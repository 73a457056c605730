"""Code that says itself where its tensors lie: `.cuda()` without a GPU, loaders with a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader as TorchDataLoader

from assay.engine.data.batches import to_device


class StayOnCpu(TorchFunctionMode):
    """Context in which `.cuda()` of a tensor or module returns it as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **(kwargs or {}))


def cuda_calls() -> AbstractContextManager[Any]:
    """Return the context for code that moves everything to a GPU: without one it stays here."""
    return nullcontext() if torch.cuda.is_available() else StayOnCpu()


class DataLoader(TorchDataLoader[Any]):
    """DataLoader of torch with a `device`: each batch is on it when it is given out.

    Without a device batches stay where they are; a trainer moves them to its own.
    """

    def __init__(
        self, *given: Any, device: torch.device | str | None = None, **settings: Any
    ) -> None:
        super().__init__(*given, **settings)
        self.device = None if device is None else torch.device(device)

    def to(self, device: torch.device | str) -> Self:
        """Give batches out on `device` from now on; return the loader."""
        self.device = torch.device(device)
        return self

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares its own class
        batches = super().__iter__()
        if self.device is None:
            return batches
        device = self.device
        return (to_device(batch, device) for batch in batches)
