"""Tensors that are divided among processes (DTensor), of which this one has a part.

What is added up or compared element by element is done on the parts, with plain tensors: torch refuses lists of both
kinds. Everything here that says so is collective: all processes that have a part call it, in the same order.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

T = TypeVar("T")
ELEMENTWISE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
"""Optimizers of torch that look at each element alone, so that an update of the parts is that of the whole."""


def is_divided(tensor: object) -> bool:
    if type(tensor) in (Tensor, nn.Parameter):
        return False
    known = sys.modules.get("torch.distributed.tensor")  # loading it takes a while: only who divides pays
    return known is not None and isinstance(tensor, known.DTensor)


def own(tensor: Tensor) -> Tensor:
    """What this process has of a tensor, in the same memory, without a graph; a plain tensor is all its own."""
    if not is_divided(tensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def own_gradient(parameter: Tensor) -> Tensor | None:
    """This process's part of a gradient, in the same memory, divided as its parameter is. May be collective."""
    grad: Any = parameter.grad
    if not is_divided(grad):
        return parameter.grad
    if grad.placements != parameter.placements:  # type: ignore[attr-defined]
        grad = grad.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
        parameter.grad = grad
    return own(grad)


def whole(tensor: Tensor) -> Tensor:
    """A plain tensor of all parts. Collective."""
    return tensor.full_tensor().detach() if is_divided(tensor) else tensor  # type: ignore[attr-defined]


def divided_as(value: Tensor, tensor: Tensor) -> Tensor:
    """A whole `value`, which all processes have, divided as `tensor` is; as it is where there is nothing to divide."""
    if not is_divided(tensor) or is_divided(value) or value.shape != tensor.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    home: Any = tensor
    return distribute_tensor(value.to(tensor.device), home.device_mesh, home.placements, src_data_rank=None)


def from_part(part: Tensor, tensor: Tensor) -> Tensor:
    """The whole of which `part` is this process's, as `tensor` is divided."""
    from torch.distributed.tensor import DTensor

    home: Any = tensor
    return DTensor.from_local(
        part, home.device_mesh, home.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def in_any_part(flag: bool, tensors: Iterable[Tensor]) -> bool:
    """Whether `flag` holds in one of the processes that have parts of `tensors`. Collective."""
    found = [tensor for tensor in tensors if is_divided(tensor)]
    if not found:
        return flag
    told = torch.tensor([float(flag)], device=found[0].device)
    for group in dict.fromkeys(group for tensor in found for group in _groups_of(tensor)):
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=group)
    return bool(told.item())


def norms_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The 2-norm of each tensor as a whole, in double precision where the device has it. Collective."""
    norms = [_norm(own(tensor)) for tensor in tensors]
    for groups, places in _by_groups(tensors).items():
        if not groups:
            continue
        squares = torch.stack([norms[i] for i in places]).square()
        for group in groups:
            dist.all_reduce(squares, group=group)
        for i, norm in zip(places, squares.sqrt().unbind(), strict=True):
            norms[i] = norm
    return norms


def norm_of_all(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all of them together. Collective; the same bits in each process."""
    total = torch.zeros((), dtype=torch.float64)
    for groups, places in _by_groups(tensors).items():
        own_norms = torch._foreach_norm([own(tensors[i]) for i in places])
        square = torch.stack([norm.double() for norm in own_norms]).square().sum()
        for group in groups:
            dist.all_reduce(square, group=group)
        total = square + total.to(square.device)
    return total.sqrt()


def whole_state(state: T, *, keep: bool = True) -> T:
    """A tree of state with whole tensors, in host memory, in the place of divided ones. Collective.

    Who does not `keep` them gets empty ones.
    """
    known: dict[tuple[Any, ...], Tensor] = {}  # tied weights are one piece of memory, and stay one

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor) and is_divided(value):
            part = own(value)
            place = part.data_ptr(), part.shape, part.stride(), tuple(value.shape)
            if place not in known or not part.numel():
                together = whole(value)
                known[place] = together.cpu() if keep else torch.empty(0)
            return known[place]
        if isinstance(value, dict):
            items = ((key, walk(item)) for key, item in value.items())
            if type(value) is dict:
                return dict(items)
            if type(value) is OrderedDict:
                ordered = OrderedDict(items)
                ordered.__dict__.update(value.__dict__)
                return ordered
            return value
        if type(value) in (list, tuple):
            return type(value)(walk(item) for item in value)
        return value

    return cast("T", walk(state))


def divided_like(state: Mapping[str, Any], there: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping of whole tensors with those divided that are so `there`, by name."""
    if not any(is_divided(value) for value in there.values()):
        return state
    changed = type(state)(  # type: ignore[call-arg]
        (name, divided_as(value, there[name]) if name in there and isinstance(value, Tensor) else value)
        for name, value in state.items()
    )
    if hasattr(state, "_metadata"):
        changed._metadata = state._metadata  # type: ignore[attr-defined]
    return changed


@contextmanager
def update_of_parts(optimizer: Optimizer) -> Iterator[None]:
    """Within it the optimizer has this process's parts in the place of divided parameters, where that is the same.

    Its fused and batched kernels want plain tensors. Optimizers that look at more than each element keep the whole.
    """
    kind = type(optimizer)
    if not (kind.__module__.startswith("torch.optim.") and kind.__name__ in ELEMENTWISE):
        yield
        return
    taken: list[tuple[list[Tensor], int, Tensor, Tensor, dict[str, Any]]] = []
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            if not is_divided(parameter):
                continue
            part = own(parameter)
            part.grad = own_gradient(parameter)
            state = dict(optimizer.state.get(parameter, {}))
            if state:
                optimizer.state[part] = {key: own(v) if isinstance(v, Tensor) else v for key, v in state.items()}
            group["params"][place] = part
            taken.append((group["params"], place, parameter, part, state))
    try:
        yield
    finally:
        for params, place, parameter, part, before in taken:
            params[place] = parameter
            part.grad = None
            after = optimizer.state.pop(part, None)
            if after is not None:
                optimizer.state[parameter] = {
                    key: _put_together(value, before.get(key), parameter, part) for key, value in after.items()
                }


def _put_together(value: Any, before: Any, parameter: Tensor, part: Tensor) -> Any:
    """A value of the state of a part as one of the whole parameter."""
    if not isinstance(value, Tensor) or not value.dim() or value.shape != part.shape:
        return value
    if isinstance(before, Tensor) and own(before) is value:
        return before
    return from_part(value, parameter)


def _groups_of(tensor: Any) -> list[dist.ProcessGroup]:
    """The process groups along which a tensor is divided."""
    axes = [axis for axis, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return [tensor.device_mesh.get_group(axis) for axis in axes]


def _by_groups(tensors: Sequence[Tensor]) -> dict[tuple[dist.ProcessGroup, ...], list[int]]:
    """Places of tensors that are divided among the same processes; none for plain ones."""
    found: dict[tuple[dist.ProcessGroup, ...], list[int]] = {}
    for i, tensor in enumerate(tensors):
        found.setdefault(tuple(_groups_of(tensor)) if is_divided(tensor) else (), []).append(i)
    return found


def _norm(tensor: Tensor) -> Tensor:
    values = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
    return norm if norm.device.type == "mps" else norm.double()
