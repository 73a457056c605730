"""Tensors distributed over several ranks (DTensors): their local parts and global norms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from assay.engine.numerics import private_torch
from assay.engine.numerics.private_torch import LOCAL_TENSOR
from assay.engine.numerics.structures import table_like

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


ELEMENTWISE = (
    "ASGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
)
"""Optimizers of torch that look at each element alone, so that an update of the parts is that of
the whole."""


def is_dtensor(tensor: Any) -> bool:
    """Return whether this rank may have only a part of `tensor`."""
    return hasattr(tensor, LOCAL_TENSOR)


def is_along(parameter: Any, axis: str) -> bool:
    """Return True if a parameter is divided along an axis of its mesh."""
    if not is_dtensor(parameter):
        return False
    names = parameter.device_mesh.mesh_dim_names or ()
    return any(
        name == axis and not each.is_replicate()
        for name, each in zip(names, parameter.placements, strict=True)
    )


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor, in the same memory; the tensor itself if it is whole."""
    local: Tensor = getattr(tensor, LOCAL_TENSOR, tensor)
    return local


def distribute_like(divided: Tensor, whole: Tensor) -> Tensor:
    """Return this rank's part of `whole`, laid out as `divided`; no communication.

    One on the device `meta` has a layout and no memory: the part stays where `whole` is.
    """
    if not is_dtensor(divided) or is_dtensor(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor  # loaded where a model is divided

    layout: DTensor = divided  # type: ignore[assignment]
    local = local_tensor(divided)
    here = whole.detach() if local.is_meta else whole.detach().to(local.device)
    return distribute_tensor(here, layout.device_mesh, layout.placements, src_data_rank=None)


def from_local_like(divided: Tensor, part: Tensor) -> Tensor:
    """Return the tensor of which `part` is this rank's, laid out as `divided` and on its device."""
    from torch.distributed.tensor import DTensor  # loaded where a model is divided

    layout: Any = divided
    return DTensor.from_local(
        part.to(local_tensor(divided).device),
        layout.device_mesh,
        layout.placements,
        run_check=False,
        shape=layout.shape,
        stride=layout.stride(),
    )


def distribute_state_like(now: Any, saved: Any) -> Any:
    """Return a saved state with its tensors distributed as those of `now`, built the same."""
    if is_dtensor(now) and isinstance(saved, Tensor) and saved.shape == now.shape:
        return distribute_like(now, saved)
    if isinstance(now, Mapping) and isinstance(saved, dict):
        pairs = ((key, distribute_state_like(now.get(key), saved[key])) for key in saved)
        return table_like(saved, pairs)
    if isinstance(now, list | tuple) and isinstance(saved, list) and len(now) == len(saved):
        return [distribute_state_like(*pair) for pair in zip(now, saved, strict=True)]
    return saved


def chunk_offsets(tensor: Tensor) -> tuple[int, ...]:
    """Return the offsets of the local part within the whole tensor."""
    (chunk,) = tensor.__create_chunk_list__()  # type: ignore[attr-defined]
    return tuple(chunk.offsets)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, from all processes that hold it, which have to ask for it together."""
    full: Tensor = tensor.full_tensor() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]
    return full


def global_norm(grads: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients, each value counted once; collective for their ranks."""
    held: dict[tuple[Any, tuple[int, ...]], list[Tensor]] = {}
    for grad in grads:
        mesh: Any = None
        dims: tuple[int, ...] = ()
        value = grad
        if is_dtensor(grad):
            layout: DTensor = grad  # type: ignore[assignment]
            if any(each.is_partial() for each in layout.placements):
                value = full_tensor(grad)
            else:
                mesh = layout.device_mesh
                value = local_tensor(grad)
                dims = tuple(
                    i for i, each in enumerate(layout.placements) if not each.is_replicate()
                )
        held.setdefault((mesh if dims else None, dims), []).append(value)
    squares = []
    for (mesh, dims), values in held.items():
        square = torch.linalg.vector_norm(torch.stack(private_torch.foreach_norm(values))).square()
        for dim in dims:
            torch.distributed.all_reduce(square, group=mesh.get_group(dim))
        squares.append(square)
    return torch.stack(squares).sum().sqrt()


def clip_dtensor_norm_(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Clip as `clip_norm_` does, by the global norm of distributed gradients."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return 0.0
    total = global_norm(grads)
    norm = float(total)
    if math.isfinite(norm) and norm * 1.01 + 1e-6 > max_norm:
        private_torch.foreach_mul_(
            [local_tensor(grad) for grad in grads], (max_norm / (total + 1e-6)).clamp_(max=1.0)
        )
    return norm


@contextmanager
def local_parameters(optimizer: Optimizer) -> Iterator[None]:
    """Give the optimizer the local parts of distributed parameters, if its results stay the same.

    Its fused and batched kernels take plain tensors, or tensors that are all distributed alike. An
    optimizer that is not element-wise keeps the whole parameters.
    """
    kind = type(optimizer)
    if not (kind.__module__.startswith("torch.optim.") and kind.__name__ in ELEMENTWISE):
        yield
        return
    taken: list[tuple[list[Tensor], int, Tensor, Tensor, dict[str, Any]]] = []
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            if not is_dtensor(parameter):
                continue
            part = local_tensor(parameter)
            part.grad = _own_gradient(parameter)
            state = dict(optimizer.state.get(parameter, {}))
            if state:
                optimizer.state[part] = {
                    key: local_tensor(v) if isinstance(v, Tensor) else v for key, v in state.items()
                }
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
                    key: _put_together(value, before.get(key), parameter, part)
                    for key, value in after.items()
                }


def _own_gradient(parameter: Tensor) -> Tensor | None:
    """This process's part of a gradient, divided as its parameter is."""
    grad: Any = parameter.grad
    home: Any = parameter
    if is_dtensor(grad) and grad.placements != home.placements:
        grad = grad.redistribute(placements=home.placements)
    return None if grad is None else local_tensor(grad)


def _put_together(value: Any, before: Any, parameter: Tensor, part: Tensor) -> Any:
    """A value of the state of a part as one of the whole parameter."""
    if not isinstance(value, Tensor) or not value.dim() or value.shape != part.shape:
        return value
    if isinstance(before, Tensor) and local_tensor(before) is value:
        return before
    return from_local_like(parameter, value)
