"""Memory that a run takes, by purpose."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from assay.core.events import Handler
from assay.engine.loop.engine import Engine
from assay.engine.loop.periods import every as each
from assay.engine.numerics.sparse import components
from assay.engine.numerics.structures import tensors_in

_MIB = 2**20


class Memory:
    """Callback that records memory in MiB.

    These are `memory/weights_mib`, `buffers`, `optimizer` (its state), `process` (where the system
    tells), and on a GPU `device` and `device_peak`.
    """

    def __init__(self, every: str = "1 epoch") -> None:
        self.every = every

    def handlers(self) -> list[Handler]:
        periodic = each(self.every, self.record, priority=80, name="Memory")
        return [periodic] if periodic is not None else []

    def record(self, engine: Engine) -> None:
        values = {f"memory/{name}_mib": size / _MIB for name, size in sizes_bytes(engine).items()}
        engine.recorder.log(values, engine.state.step)


def sizes_bytes(engine: Engine) -> dict[str, int]:
    """Return the bytes in use, by purpose."""
    model = engine.process.model
    optimizers = engine.process.backward.optimizers.values()
    gathered = [tensor for optimizer in optimizers for tensor in tensors_in(optimizer.state)]
    sizes = {
        "weights": _bytes_of(model.parameters()),
        "buffers": _bytes_of(model.buffers()),
        "optimizer": _bytes_of(gathered),
    }
    process = _process_bytes()
    if process is not None:
        sizes["process"] = process
    if engine.device.type == "cuda":
        sizes["device"] = torch.cuda.memory_allocated(engine.device)
        sizes["device_peak"] = torch.cuda.max_memory_allocated(engine.device)
    return sizes


def _process_bytes() -> int | None:
    """The memory that this process has in use; None where the system does not say it in a file."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except OSError:
        return None


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all tensors, each counted once."""
    dense = {id(tensor): components(tensor) for tensor in tensors}
    return sum(part.numel() * part.element_size() for parts in dense.values() for part in parts)
