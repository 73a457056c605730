"""Optimizer state by parameter name, so that it means the same whatever the order of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """State and groups of an optimizer; parameters are named as in the model."""
    names = _names(optimizer, model)
    packed = optimizer.state_dict()
    return {
        "state": {names[index]: state for index, state in packed["state"].items()},
        "groups": [
            {**group, "params": [names[index] for index in group["params"]]} for group in packed["param_groups"]
        ],
    }


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Put a saved state back. CheckpointError when the parameters are others than those that were saved."""
    names = _names(optimizer, model)
    index_of = {name: index for index, name in names.items()}
    there = {name for group in saved["groups"] for name in group["params"]}
    if there != set(index_of):
        odd = ", ".join(sorted(there ^ set(index_of))[:5])
        raise CheckpointError(f"The optimizer of the checkpoint trains other parameters: {odd}.")
    optimizer.load_state_dict(
        {
            "state": {index_of[name]: state for name, state in saved["state"].items()},
            "param_groups": [{**g, "params": [index_of[name] for name in g["params"]]} for g in saved["groups"]],
        }
    )


def _names(optimizer: Optimizer, model: nn.Module) -> dict[int, str]:
    """Name by index, in the order in which `Optimizer.state_dict` numbers parameters."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    names: dict[int, str] = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            names[len(names)] = name_of.get(id(parameter), f"group{number}.{place}")
    return names


def idle_optimizer() -> Optimizer:
    """An optimizer of nothing, for a process that wants one and is only evaluated."""
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
