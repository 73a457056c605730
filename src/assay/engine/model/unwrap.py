"""The user's own module behind what torch wraps around it."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, DistributedDataParallel and DataParallel.

    >>> model = nn.Linear(2, 2)
    >>> unwrap(DataParallel(model)) is model
    True
    """
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel | DataParallel) else None
        # torch.compile keeps the model under this name.
        inner = inner or model.__dict__.get("_modules", {}).get("_orig_mod")
        if not isinstance(inner, nn.Module):
            return model
        model = inner
