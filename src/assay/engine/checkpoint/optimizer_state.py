"""Optimizer state by parameter name, so that it means the same whatever the order of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError
from assay.engine.numerics.dtensor import distribute_like, is_dtensor
from assay.engine.numerics.sparse import is_sparse


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return all that an optimizer gives of its state; parameters are named as in the model.

    `state` is by parameter, `other_state` by other keys, `other` what its class adds to it. A state
    that torch would not recognize is `whole`.
    """
    names = _names(optimizer, model)
    packed = optimizer.state_dict()
    if not _is_of_torch(packed, names):
        return {"whole": packed}
    saved = {
        "state": {names[key]: state for key, state in packed["state"].items() if key in names},
        "groups": [
            {**group, "params": [names[index] for index in group["params"]]}
            for group in packed["param_groups"]
        ],
        "other_state": {key: state for key, state in packed["state"].items() if key not in names},
        "other": {key: value for key, value in packed.items() if key not in _OF_TORCH},
    }
    return {key: value for key, value in saved.items() if value or key in ("state", "groups")}


_OF_TORCH = ("state", "param_groups")


def _is_of_torch(packed: Mapping[str, Any], names: Mapping[int, str]) -> bool:
    """Return True for a state by parameter and groups of parameters, which are numbers in both."""
    if not all(key in packed for key in _OF_TORCH):
        return False
    members = [index for group in packed["param_groups"] for index in group["params"]]
    return isinstance(packed["state"], Mapping) and members == list(names)


class NamedState:
    """Optimizer state keyed by parameter names of `model`, as a checkpoint keeps it."""

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        self.optimizer = optimizer
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        return optimizer_state(self.optimizer, self.model)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_optimizer_state(self.optimizer, self.model, state)


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Load a saved state; CheckpointError if parameters, groups or the class are others."""
    if "whole" in saved:
        optimizer.load_state_dict(saved["whole"])
        return
    names = _names(optimizer, model)
    index_of = {name: index for index, name in names.items()}
    there = {name for group in saved["groups"] for name in group["params"]}
    if there != set(index_of):
        odd = ", ".join(sorted(there ^ set(index_of))[:5])
        raise CheckpointError(f"The optimizer of the checkpoint trains other parameters: {odd}.")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states: dict[Any, Any] = dict(saved.get("other_state", {}))
    for name, state in saved["state"].items():
        index = index_of[name]
        parameter = parameters[index]
        states[index] = (
            {key: _laid_out_as(parameter, value) for key, value in state.items()}
            if isinstance(state, Mapping)
            else state
        )
    own_groups = optimizer.state_dict()["param_groups"]
    groups = [_group_of(group, names, saved["groups"]) for group in own_groups]
    for own, group in zip(own_groups, groups, strict=True):
        _refuse_other_class(optimizer, own, group)
    other = saved.get("other", {})
    optimizer.load_state_dict({"state": states, "param_groups": groups, **other})


def _group_of(
    group: Mapping[str, Any], names: Mapping[int, str], saved: list[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the saved settings of a group; its parameters stay in order, as torch numbers them."""
    members = {names[index] for index in group["params"]}
    own = {key: group[key] for key in ("params", "param_names") if key in group}
    for each in saved:
        if set(each["params"]) == members:
            return {**each, **own}
    some = ", ".join(sorted(members)[:5])
    raise CheckpointError(
        f"The optimizer of the checkpoint has no group of these parameters: {some}."
    )


def _refuse_other_class(
    optimizer: Optimizer, own: Mapping[str, Any], saved: Mapping[str, Any]
) -> None:
    """Raise CheckpointError for saved settings that are not of this class.

    Another version of torch may have added or dropped some, not both.
    """
    lacking = sorted((optimizer.defaults.keys() & own.keys()) - saved.keys())
    foreign = sorted(saved.keys() - own.keys())
    if lacking and foreign:
        kind = type(optimizer).__name__
        raise CheckpointError(
            f"The checkpoint is of an optimizer with {', '.join(foreign)}, not of {kind}, which has"
            f" {', '.join(lacking)}.",
            fix="Resume with the class it was trained with, or begin a new run with its weights:"
            " assay run CONFIG --from RUN",
        )


def _laid_out_as(parameter: torch.Tensor, value: Any) -> Any:
    """Return state in the memory layout of its parameter: fused updates index both alike."""
    if is_dtensor(parameter) and isinstance(value, torch.Tensor) and value.shape == parameter.shape:
        return distribute_like(parameter, value)
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return value
    # The momentum of a sparse gradient is sparse.
    if is_sparse(value) or value.stride() == parameter.stride():
        return value
    copy = torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False)
    return copy.copy_(value)


def _names(optimizer: Optimizer, model: nn.Module) -> dict[int, str]:
    """Name by index, in the order in which `Optimizer.state_dict` numbers parameters."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    names: dict[int, str] = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            names[len(names)] = name_of.get(id(parameter), f"group{number}.{place}")
    return names


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each group: learning rate, betas, all that is no parameter."""
    groups = optimizer.param_groups
    return [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in groups
    ]


def put_settings(
    optimizer: Optimizer, settings: Sequence[Mapping[str, Any]], names: Collection[str]
) -> None:
    """Set those `settings` of each group that have one of `names`; "lr" includes "initial_lr"."""
    names = {*names, *({"initial_lr"} if "lr" in names else ())}
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update({name: own[name] for name in names if name in own})


def idle_optimizer() -> Optimizer:
    """Return an optimizer without parameters, for a process that is only evaluated."""
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)


FUSED_ON = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices on which torch has one kernel for a whole update."""


def may_fuse(kind: object, model: nn.Module, written: Collection[str]) -> bool:
    """Return True if an optimizer class has a fused update for what is `written` of it.

    It is several times faster and rounds otherwise. What the user says about the way of the update
    counts.
    """
    is_torch = (
        isinstance(kind, type)
        and issubclass(kind, Optimizer)
        and kind.__module__.startswith("torch.optim")
    )
    if not is_torch or "fused" not in inspect.signature(kind).parameters:  # type: ignore[arg-type]
        return False
    if {"fused", "foreach", "capturable", "differentiable", "args"} & set(written):
        return False
    sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    devices = ("cpu",) if kind is torch.optim.Adagrad else FUSED_ON
    return not sparse and all(
        each.is_floating_point() and each.device.type in devices for each in trained
    )
