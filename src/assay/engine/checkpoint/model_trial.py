"""Trial of a model's state: it is loaded into a second model, as a resumed run would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError
from assay.engine.checkpoint.codec import decode, encode
from assay.engine.checkpoint.weights import load_model_state
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import is_dtensor

_MOST_NUMEL = 1 << 22
"""Numbers of a model whose second one has memory; that of a larger one is on `meta`."""


class ModelTrial:
    """Second model as it was before the first step, which states of the model are loaded into.

    Its modules share all attributes with those of the model but parameters, buffers and children.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        numel = sum(each.numel() for each in tensors)
        self._device = "meta" if numel > _MOST_NUMEL else "cpu"
        self._shapes = _shapes(model.state_dict())
        self._second = None if any(map(is_dtensor, tensors)) else _second(model, self._device, {})

    def try_state(self, model: nn.Module) -> None:
        """Raise CheckpointError if the present state of the model cannot be loaded."""
        if self._second is None:
            return
        encoded = encode(model.state_dict(), path="model")
        tensors = {name: each.detach().to(self._device) for name, each in encoded.tensors.items()}
        try:
            load_model_state(self._second, decode(encoded.tree, tensors), resizes=True)
        except CheckpointError as error:
            if "meta tensor" in str(error.__cause__):  # without memory: it says nothing
                return
            raise CheckpointError(
                f"The model cannot load its own state: {error.what}",
                where=type(model).__name__,
                fix="Make all parameters and buffers in __init__, and let load_state_dict take what"
                " state_dict returns.",
            ) from error
        except Exception as error:  # of a method of the user; on `meta` it says nothing
            if self._device == "meta":
                return
            raise CheckpointError(
                f"The model cannot load its own state: {type(error).__name__}: {error}.",
                where=f"{type(model).__name__}",
                fix="Let load_state_dict and set_extra_state take what is saved.",
            ) from error

    def try_changed(self, model: nn.Module) -> None:
        """Do so if names or shapes have changed since the beginning."""
        if _shapes(model.state_dict()) != self._shapes:
            self.try_state(model)


def _shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "shape", None) for name, value in state.items()}


def _second(model: nn.Module, device: str, memo: dict[int, Any]) -> nn.Module:
    """Return a model of the same modules with tensors of their own; what is shared stays shared."""
    if id(model) in memo:
        known: nn.Module = memo[id(model)]
        return known
    copy: nn.Module = object.__new__(type(model))
    memo[id(model)] = copy
    vars(copy).update(vars(model))
    children = {
        name: None if child is None else _second(child, device, memo)
        for name, child in private_torch.children_of(model).items()
    }
    private_torch.set_tables(
        copy,
        parameters=_tensors(private_torch.parameters_of(model), device, memo),
        buffers=_tensors(private_torch.buffers_of(model), device, memo),
        children=children,
    )
    return copy


def _tensors(table: Mapping[str, Any], device: str, memo: dict[int, Any]) -> dict[str, Any]:
    return {
        name: None if tensor is None else _tensor(tensor, device, memo)
        for name, tensor in table.items()
    }


def _tensor(tensor: Tensor, device: str, memo: dict[int, Any]) -> Tensor:
    if id(tensor) not in memo:
        other = tensor.detach().to(device)
        if tensor.layout is torch.strided:
            shape, stride = tensor.shape, tensor.stride()
            other = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=device)
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(other, tensor.requires_grad) if is_parameter else other
    found: Tensor = memo[id(tensor)]
    return found
