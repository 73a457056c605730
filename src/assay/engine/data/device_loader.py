"""DataLoader of torch that moves its batches to a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from assay.engine.data.batches import to_device


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
