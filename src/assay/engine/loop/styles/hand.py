"""The loop written by hand, `for batch in engine`: what is trained, and how it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.loop.process import Process
from assay.engine.loop.styles.own_updates import pair_output, without_graph
from assay.engine.metrics.metric import Metric
from assay.engine.optim.multi_optimizer_step import as_optimizer_step
from assay.engine.optim.optimizer_step_base import OptimizerStepBase


class ByHand(Process):
    """Process of a loop `for batch in engine`, whose body does the training.

    `validate(batch)` returns what the metrics are to measure; without it a batch is a pair,
    measured by `pred` and `target`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        *,
        backward: OptimizerStepBase | None = None,
        validate: Callable[[Any], Any] | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.model = model
        self.metrics = dict(metrics or {})
        self.validate = validate
        if backward is None and optimizer is not None:
            backward = as_optimizer_step(optimizer)
        if backward is not None:
            self.backward = backward

    def forward_step(self, batch: Any) -> Any:
        raise InputError(
            "This training is a loop by hand.",
            fix="Write `for batch in engine:`, not engine.run().",
        )

    def validation_step(self, batch: Any) -> Any:
        if self.validate is not None:
            return without_graph(self.validate, batch)
        return without_graph(pair_output, self.model, batch, "a loop by hand")
