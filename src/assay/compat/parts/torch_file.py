"""Files in torch's own format that `torch.load(weights_only=True)` reads."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch

from assay.core.errors import CheckpointError


def write_torch_file(path: Path, state: Any) -> None:
    """Write tensors and plain data with `torch.save`, through a file beside it.

    Raises CheckpointError for a state that only unpickling of any code could read back.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"The state for {path.name} is not plain data: {error}",
            where=str(path),
            fix="Save state_dict() of modules and optimizers, not the objects.",
        ) from None
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_bytes(buffer.getvalue())
    os.replace(beside, path)
