"""Trials of saved states before the first step: each is loaded again, as a resumed run would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError
from assay.core.optimizer_closure import needs_closure
from assay.engine.checkpoint.codec import as_bytes, decode, encode
from assay.engine.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from assay.engine.checkpoint.weights import load_model_state
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import is_dtensor
from assay.engine.numerics.seed import restore_generators, seed_all

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
        """Do so if names or shapes have changed since they were tried last."""
        if self._second is None:
            return
        shapes = _shapes(model.state_dict())
        if shapes != self._shapes:
            self._shapes = shapes
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


_MOST_OPTIMIZER_NUMEL = 1 << 24
"""Numbers in the parameters of an optimizer that is tried: it is copied twice."""
_MANY_STEPS_NUMEL = 1 << 20
_STEPS, _MANY_STEPS = 3, 13
"""Steps before and after the load: a wrapper may act in every tenth alone. A prime number: a count
that is lost then shows whatever it is a multiple of."""
_SET_BY_OTHERS = ("step", "_opt_called")
"""Attributes that schedulers of torch put on an optimizer."""


def try_optimizer_state(optimizer: Any, where: str) -> None:
    """Raise CheckpointError if a resumed run would update the weights otherwise.

    Two copies of the optimizer and its parameters are trained: one goes on, the other loads what
    the first one saves. Those of torch, those of many parameters and those that cannot be copied or
    stepped here are not tried; `where` is the part of the checkpoint.
    """
    if type(optimizer).__module__.startswith("torch.optim") or needs_closure(type(optimizer)):
        return
    parameters = _parameters(optimizer)
    numel = sum(each.numel() for each in parameters)
    if numel > _MOST_OPTIMIZER_NUMEL or any(
        each.is_meta or is_dtensor(each) for each in parameters
    ):
        return
    steps = _STEPS if numel > _MANY_STEPS_NUMEL else _MANY_STEPS
    with restore_generators():
        try:
            first, fresh = _copy(optimizer), _copy(optimizer)
            for step in range(steps):
                _step(first, step)
        except Exception:  # whatever a stranger's class makes of it says nothing of its state
            return
        _move(optimizer, first, fresh, where)
        for step in range(steps, 2 * steps):
            _step(first, step)
            _step(fresh, step)
            if not _are_equal(first, fresh):
                raise _inexact(optimizer, where)


def _move(optimizer: Any, first: Any, fresh: Any, where: str) -> None:
    """Load what the first optimizer saves, and its weights, into the fresh one."""
    nameless = nn.Module()
    encoded = encode(optimizer_state(first, nameless), path=where)
    tensors = {name: tensor.detach().clone() for name, tensor in encoded.tensors.items()}
    try:
        with torch.no_grad():
            for own, other in zip(_parameters(fresh), _parameters(first), strict=True):
                own.copy_(other)
        load_optimizer_state(fresh, nameless, decode(encoded.tree, tensors))
    except CheckpointError:
        raise
    except Exception as error:  # as a resumed run would meet it
        kind = type(optimizer).__name__
        raise CheckpointError(
            f"{kind} does not load the state that it gives: {type(error).__name__}: {error}.",
            where=f"{where}: {kind}.load_state_dict",
            fix="Let load_state_dict take what state_dict returns, also in a fresh optimizer.",
        ) from error


def _inexact(optimizer: Any, where: str) -> CheckpointError:
    kind = type(optimizer).__name__
    return CheckpointError(
        f"{kind} keeps a state that its state_dict does not give, or that its load_state_dict does"
        " not take: a resumed run would update the weights otherwise.",
        where=where,
        fix="Keep it in self.state or in a parameter group; or return it from state_dict, and set"
        " it in load_state_dict.",
    )


def _copy(optimizer: Any) -> Any:
    """Return a copy with parameters of its own, without hooks."""
    memo: dict[int, Any] = {
        id(each): each.detach().clone().requires_grad_(each.requires_grad)
        for each in _parameters(optimizer)
    }
    return _copy_with(optimizer, memo)


def _copy_with(optimizer: Any, memo: dict[int, Any]) -> Any:
    """Copy all attributes: of an optimizer `deepcopy` takes only the state and the groups."""
    copy = memo[id(optimizer)] = object.__new__(type(optimizer))
    own = {name: value for name, value in vars(optimizer).items() if not _is_of_others(name)}
    for value in own.values():
        if isinstance(value, Optimizer) and id(value) not in memo:
            _copy_with(value, memo)
    attributes = {name: deepcopy(value, memo) for name, value in own.items()}
    if isinstance(copy, Optimizer):
        copy.__setstate__(attributes)
    vars(copy).update(attributes)
    return copy


def _is_of_others(name: str) -> bool:
    return name in _SET_BY_OTHERS or name.endswith("_hooks")


def _step(optimizer: Any, step: int) -> None:
    """Take a step with gradients that depend on its number alone."""
    seed_all(step)
    for parameter in _parameters(optimizer):
        parameter.grad = torch.randn_like(parameter) if parameter.is_floating_point() else None
    seed_all(step)
    optimizer.step()


def _are_equal(one: Any, other: Any) -> bool:
    pairs = zip(_parameters(one), _parameters(other), strict=True)
    return all(as_bytes(mine) == as_bytes(theirs) for mine, theirs in pairs)


def _parameters(optimizer: Any) -> list[Tensor]:
    return list(_each_parameter(optimizer))


def _each_parameter(optimizer: Any) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
