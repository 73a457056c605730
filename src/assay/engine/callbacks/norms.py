"""Norms of gradients and weights, by module."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.engine.loop.bus import Before, steps
from assay.engine.loop.engine import Engine
from assay.engine.numerics.dtensor import global_norm, is_dtensor
from assay.engine.numerics.sparse import entries


class Norms:
    """Callback that records `grad_norm/MODULE` and `weight_norm/MODULE`.

    Gradients are measured as the optimizer gets them, weights after its update. A module is what
    holds the parameters; `depth` 1, 2, ... keeps only so many parts of its name. In a pipeline each
    process measures its stages, and the first records the norms of the whole model.
    """

    def __init__(self, every: str = "100 steps", *, depth: int | None = None) -> None:
        if depth is not None and depth < 1:
            raise InputError(
                f"depth is {depth}; it counts the parts of a module's name, from 1 on."
            )
        self.when = steps(every)
        self.depth = depth
        self._hooks: list[RemovableHandle] = []
        self._grads: list[tuple[str, Tensor]] = []

    def handlers(self) -> list[Handler]:
        if self.when is None:
            return []
        return [
            Handler(event=Event.STEP_BEGIN, fn=self.listen, when=Before(self.when)),
            Handler(event=Event.STEP_END, fn=self.record, when=self.when),
            Handler(event=Event.EXCEPTION, fn=self.leave, priority=-1000),
        ]

    def listen(self, engine: Engine) -> None:
        """Be there when the optimizer takes its step: after it the gradients are gone."""
        trained = [pair for pair in _weights(engine) if pair[1].requires_grad]

        def measure(mine: list[tuple[str, nn.Parameter]], *_: Any) -> None:
            for name, weight in mine:
                if weight.grad is not None:
                    self._grads.append((name, _norm(weight.grad)))

        self._hooks = []
        for optimizer in engine.process.backward.optimizers.values():
            own = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
            mine = [(name, weight) for name, weight in trained if id(weight) in own]
            self._hooks.append(optimizer.register_step_pre_hook(partial(measure, mine)))

    def record(self, engine: Engine) -> None:
        weights = [(name, _norm(weight)) for name, weight in _weights(engine)]
        values = _numbers([*self._grads, *weights])
        grad_names = [name for name, _ in self._grads]
        weight_names = [name for name, _ in weights]
        grads = dict(zip(grad_names, values, strict=False))
        norms = dict(zip(weight_names, values[len(grads) :], strict=True))
        self.leave()
        if engine.pipeline is not None:
            grads = engine.pipeline.all_gather_stages(grads)
            norms = engine.pipeline.all_gather_stages(norms)
        found = self._by_module("grad_norm", grads) | self._by_module("weight_norm", norms)
        engine.recorder.log(found, engine.state.step)

    def leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._grads = []

    def _by_module(self, kind: str, norms: Mapping[str, float]) -> dict[str, float]:
        """The norm over all parameters of a module, from theirs."""
        squares: dict[str, float] = {}
        for name, norm in norms.items():
            path = name.split(".")[:-1]
            module = ".".join(path[: self.depth]) or "model"
            key = f"{kind}/{module}"
            squares[key] = squares.get(key, 0.0) + norm * norm
        return {name: math.sqrt(square) for name, square in squares.items()}


def _weights(engine: Engine) -> list[tuple[str, nn.Parameter]]:
    """Each weight once: of those that two stages of a pipeline have, the first counts them."""
    pipeline = engine.pipeline
    named = engine.process.model.named_parameters()
    if pipeline is None:
        return list(named)
    return [(name, weight) for name, weight in named if pipeline.ranks.owns(weight)]


def _norm(tensor: Tensor) -> Tensor:
    if is_dtensor(tensor):
        return global_norm([tensor.detach()])
    values = entries(tensor)
    dtype = torch.promote_types(values.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(values, dtype=dtype)
    return norm


def _numbers(norms: list[tuple[str, Tensor]]) -> list[float]:
    """All read at once: reading waits for the device."""
    if not norms:
        return []
    home = norms[0][1].device
    kind = torch.float32 if home.type == "mps" else torch.float64
    read: list[float] = torch.stack([norm.to(home, kind) for _, norm in norms]).tolist()
    return read
