"""Size of the checkpoints of a run."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from assay.engine.checkpoint.codec import encode
from assay.engine.loop.process import Process
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.structures import tensors_in
from assay.engine.optim.criterion import process_state


def checkpoint_bytes(process: Process) -> int:
    """Return the size of a checkpoint of all ranks together, after an update.

    CheckpointError for a state that cannot be kept.
    """
    model, backward = process.model, process.backward
    parts = {"model": model.state_dict()}
    parts |= {name: part.state_dict() for name, part in backward.parts(model).items()}
    parts |= process_state(process)
    sizes: dict[int, int] = {}
    for part, state in parts.items():
        encode(_hollow(state), path=part)
        for tensor in tensors_in(state):
            size = math.prod(tensor.shape) * tensor.dtype.itemsize  # of a DTensor: the whole
            sizes[id(local_tensor(tensor).untyped_storage())] = size
    return sum(sizes.values())


def _hollow(state: Any) -> Any:
    """Return a state with an empty tensor for each: what is encoded has to be real."""
    if isinstance(state, Tensor):
        return torch.empty(0, dtype=state.dtype)
    if type(state) in (dict, OrderedDict):
        return {key: _hollow(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_hollow(value) for value in state)
    return state
