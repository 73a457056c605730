"""Precision of the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from assay.core.errors import InputError

CHOICES = ("fp32", "bf16")


def in_precision(name: str, device: torch.device, forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` under autocast; for fp32 it is `forward` itself, which costs nothing."""
    if name == "fp32":
        return forward
    if name not in CHOICES:
        raise InputError(f"There is no precision {name!r}.", fix=f"Choose one of {', '.join(CHOICES)}.")

    @wraps(forward)
    def autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return forward(*args, **kwargs)

    return autocast
