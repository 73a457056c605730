"""Precision of the arithmetic: of the forward pass, and of fp32 matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from assay.core.errors import InputError

CHOICES = ("fp32", "tf32", "bf16", "fp16")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def in_precision(
    name: str, device: torch.device, forward: Callable[..., Any], *, evaluate: str = "fp32"
) -> Callable[..., Any]:
    """`forward` under autocast; for fp32 it is `forward` itself, which costs nothing.

    Where no gradient is asked for it is an evaluation, which has a precision of its own:
    `evaluate`.
    """
    training = _dtype_of(name)
    evaluating = _dtype_of(evaluate)
    if training is None and evaluating is None:
        return forward

    @wraps(forward)
    def autocast(*args: Any, **kwargs: Any) -> Any:
        dtype = training if torch.is_grad_enabled() else evaluating
        if dtype is None:
            return forward(*args, **kwargs)
        with torch.autocast(device.type, dtype=dtype):
            return forward(*args, **kwargs)

    return autocast


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Inside, GPUs multiply fp32 matrices in tf32 if that is the precision, and in no other case.

    torch itself allows tf32 in convolutions and not in products; here it is one answer for both.
    """
    _dtype_of(name)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _dtype_of(name: str) -> torch.dtype | None:
    if name not in CHOICES:
        raise InputError(
            f"There is no precision {name!r}.", fix=f"Choose one of {', '.join(CHOICES)}."
        )
    return _AUTOCAST.get(name)
