"""Checks before a run begins: process, data and device can train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from assay.core.errors import InputError
from assay.engine.loop.epoch import no_batch
from assay.engine.loop.state import State


def check_trainable(process: Any, state: State, device: torch.device) -> None:
    """Raise InputError for a process, data or device that cannot train."""
    if getattr(process, "backward", None) is None:
        raise InputError(
            f"{type(process).__name__} cannot train: it has no `backward`.",
            fix="Set process.backward = OptimizerStep(optimizer), or give Supervised an optimizer.",
        )
    if state.epoch_length == 0:
        raise no_batch()
    model = getattr(process, "model", None)
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    devices = {parameter.device for parameter in weights}
    if devices and device.type not in {each.type for each in devices}:
        there = ", ".join(sorted(map(str, devices)))
        raise InputError(
            f"The model is on {there}, the engine on {device}.",
            fix=f'Give Engine(..., device="{there}"), or move the model before its optimizer is'
            " made.",
        )
