"""Objects that have the methods of a process, and no base class."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from assay.engine.loop.process import Process
from assay.engine.loop.styles.own_updates import OwnProcess
from assay.engine.metrics.metric import Metric
from assay.engine.optim.losses import Losses
from assay.engine.optim.optimizer_step_base import OptimizerStepBase


class Duck(OwnProcess):
    """Anything with `training_step(batch)` and `update()`, which does both itself.

    Validation and modes are the templates of a process where the object has no methods of its own.
    """

    def __init__(
        self,
        thing: Any,
        model: nn.Module,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.thing = thing
        self.who = type(thing).__name__
        self._takes_step = bool(inspect.signature(thing.update).parameters)
        super().__init__(model, backward=backward, metrics=metrics)

    def forward_step(self, batch: Any) -> tuple[Losses, Any]:
        return self.thing.forward_step(batch)  # type: ignore[no-any-return]

    def training_step(self, batch: Any) -> Any:
        output = self.thing.training_step(batch)
        self._micro_batches += 1
        self._loss = output.get("loss") if isinstance(output, Mapping) else None
        return output

    def update(self, step: int) -> bool:
        self.thing.update(step) if self._takes_step else self.thing.update()
        micro_batches = self._micro_batches
        loss = self._loss
        self._micro_batches = 0
        self.has_updated = True
        self._updates.settle(step, micro_batches, loss)
        return True

    def validation_step(self, batch: Any) -> Any:
        own = getattr(self.thing, "validation_step", None)
        return super().validation_step(batch) if own is None else own(batch)

    def train(self, mode: bool = True) -> None:
        own = getattr(self.thing, "train", None)
        super().train(mode) if own is None else own(mode)

    def eval(self) -> None:
        own = getattr(self.thing, "eval", None)
        self.train(False) if own is None else own()


class OnlyForward(Process):
    """Anything with `forward_step(batch)`; everything else is as in a process."""

    def __init__(
        self,
        thing: Any,
        model: nn.Module,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.thing = thing
        self.model = model
        self.metrics = dict(metrics or {})
        if backward is not None:
            self.backward = backward

    def forward_step(self, batch: Any) -> tuple[Losses, Any]:
        return self.thing.forward_step(batch)  # type: ignore[no-any-return]
