"""What one batch means: forward, loss and output. The engine owns the order, a process the arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.backward import Backward, Loss
from assay.engine.metrics import Metric

Model = nn.Module


class Process(ABC):
    """Write `forward_step`; everything else is a template that may be replaced.

    Training calls `train()`, then for each window of micro-batches `training_step(batch)` for each and `update(step)`
    once. Evaluation calls `eval()`, then `validation_step(batch)`.
    """

    model: nn.Module
    backward: Backward
    metrics: Mapping[str, Metric]

    @abstractmethod
    def forward_step(self, batch: Any) -> tuple[Loss, Any]:
        """The loss (a mean, or a (sum, weight) pair) and the output (a mapping; `loss` in it is for logs)."""

    def training_step(self, batch: Any) -> Any:
        """Forward and backward of one micro-batch; no update."""
        loss, output = self.forward_step(batch)
        self.backward(loss)
        return output

    def validation_step(self, batch: Any) -> Any:
        """Forward only; what comes back carries no graph."""
        with torch.no_grad():
            _, output = self.forward_step(batch)
        return output

    def update(self, step: int) -> bool:
        """One optimizer update after `step` completed ones; False when it was left out."""
        return self.backward.update(step)

    def train(self, mode: bool = True) -> None:
        self.model.train(mode)

    def eval(self) -> None:
        self.train(False)


class Supervised(Process):
    """A model, a criterion and batches of (input, target).

    The output is a mapping of `pred`, `target` and `loss`, which `metrics` read in evaluation.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        backward: Backward | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.model = model
        self.criterion = criterion
        self.metrics = dict(metrics or {})
        if backward is not None:
            self.backward = backward
        elif optimizer is not None:
            self.backward = Backward(optimizer)

    def forward_step(self, batch: Any) -> tuple[Loss, Any]:
        try:
            inputs, target = batch
        except (TypeError, ValueError):
            raise InputError(
                f"Supervised takes batches of (input, target); this one is {_shape_of(batch)}.",
                fix="Return such pairs from the data set, or write your own Process.",
            ) from None
        pred = self.model(inputs)
        loss = self.criterion(pred, target)
        return loss, {"pred": pred.detach(), "target": target, "loss": loss.detach()}


def _shape_of(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping of {', '.join(map(str, batch))}"
    if isinstance(batch, list | tuple):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"
