"""Trial of an optimizer's state before the first step: what is saved, loaded into a fresh copy."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import CheckpointError
from assay.core.optimizer_closure import needs_closure
from assay.engine.checkpoint.codec import as_bytes, decode, encode
from assay.engine.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from assay.engine.numerics.dtensor import is_dtensor
from assay.engine.numerics.seed import seed_all, undisturbed

_MOST_NUMEL = 1 << 24
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
    if numel > _MOST_NUMEL or any(each.is_meta or is_dtensor(each) for each in parameters):
        return
    steps = _STEPS if numel > _MANY_STEPS_NUMEL else _MANY_STEPS
    with undisturbed():
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
