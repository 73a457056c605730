"""Models, data and engines that train in milliseconds, and what a test asks them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from assay.core.events import ALWAYS, Event, Handler
from assay.engine import Engine, Loader, Supervised
from assay.engine.checkpoint.codec import decode, encode
from assay.engine.loop.engine_state import capture_state


def points(size: int = 20, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> TensorDataset:
    """Inputs of four numbers, targets of two."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, 4, generator=draw, dtype=torch.float64)
    targets = torch.stack([inputs.sum(1), inputs.square().sum(1)], 1) + 0.1
    return TensorDataset(inputs.to(dtype), targets.to(dtype))


class Noisy:
    """`points` with augmentation that draws from all three global generators."""

    def __init__(self, size: int = 20) -> None:
        self.inputs, self.targets = points(size).tensors

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(4) + random.random() + float(np.random.rand())
        return self.inputs[index] + 0.1 * noise, self.targets[index]


def net(*, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A plain model: nothing random, nothing that depends on the other samples of a batch."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def hard_net() -> nn.Sequential:
    """A model with what makes resuming hard: dropout and running statistics."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )


def supervised(model: nn.Module | None = None, *, lr: float = 0.05, **given: Any) -> Supervised:
    """A regression by SGD with momentum, or as given."""
    model = net() if model is None else model
    if "backward" not in given:
        given.setdefault("optimizer", torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
    return Supervised(model, nn.MSELoss(), **given)


def loader(size: int = 20, batch_size: int = 8, **given: Any) -> Loader:
    return Loader(points(size), batch_size=batch_size, **given)


def engine(process: Any = None, train: Iterable[Any] | None = None, **given: Any) -> Engine:
    """Two epochs of three steps, the last of four samples, unless given otherwise."""
    if not {"epochs", "steps", "samples", "seconds"} & given.keys():
        given["epochs"] = 2
    return Engine(process or supervised(), loader() if train is None else train, **given)


def tensors_of(state: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of nested state by its path; tensors are copied."""
    if isinstance(state, Tensor):
        return {path: state.detach().clone()}
    if isinstance(state, Mapping):
        items: Iterable[tuple[Any, Any]] = state.items()
    elif isinstance(state, list | tuple):
        items = enumerate(state)
    else:
        return {path: state}
    return {
        name: leaf
        for key, value in items
        for name, leaf in tensors_of(value, f"{path}/{key}").items()
    }


def weights_of(model: nn.Module) -> dict[str, Any]:
    """Parameters and buffers, copied."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_bits(one: Any, other: Any) -> bool:
    """Whether two states are equal to the last bit; nan equals nan."""
    first, second = tensors_of(one), tensors_of(other)
    return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.dtype == other.dtype
            and torch.equal(_bits(one), _bits(other))
        )
    return bool(one == other) or (one != one and other != other)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def kept(runs: Engine) -> Any:
    """What a checkpoint of now would give back."""
    encoded = encode(capture_state(runs))
    return decode(encoded.tree, {name: tensor.clone() for name, tensor in encoded.tensors.items()})


def heard(runs: Engine, *events: Event) -> list[str]:
    """List that fills with the names of events as they happen, before any other listener."""
    told: list[str] = []
    for event in events or tuple(Event):
        runs.bus.add(Handler(event=event, fn=_teller(told, event), priority=-(10**6)))
    return told


def _teller(told: list[str], event: Event) -> Callable[[], None]:
    return lambda: told.append(event.value)


class Counted:
    """Fires always, and keeps the counts at which it did."""

    def __init__(self, runs: Engine, event: Event) -> None:
        self.counts: list[int] = []
        self._next = 0
        runs.bus.add(Handler(event=event, fn=self._tell, when=self, priority=-(10**6)))

    def next(self, count: int) -> int:
        """A point asks for the count after the one that it fires."""
        self._next = ALWAYS.next(count)
        return self._next

    def _tell(self) -> None:
        self.counts.append(self._next - 1)
