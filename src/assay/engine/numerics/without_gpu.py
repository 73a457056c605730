"""Code that says `.cuda()` on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


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
