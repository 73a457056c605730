"""A training written as one function: step(batch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from assay.engine.loop.styles.own_updates import OwnProcess, pair_output, without_graph
from assay.engine.metrics.metric import Metric
from assay.engine.optim.optimizer_step_base import OptimizerStepBase


class StepFunction(OwnProcess):
    """Process of a function that maps a batch to its loss, (loss, output) or a mapping with `loss`.

    Other numbers in the mapping are logged. The function may update the weights itself with
    `optimizer`: then its loss is only recorded. `validate(batch)` returns what the metrics are to
    measure; without it a batch is a pair, measured by `pred` and `target`.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        model: nn.Module,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        *,
        backward: OptimizerStepBase | None = None,
        validate: Callable[[Any], Any] | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.step = step
        self.validate = validate
        self.who = getattr(step, "__name__", type(step).__name__)
        super().__init__(model, optimizer, backward=backward, metrics=metrics)

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        return self.read_result(self.step(batch))

    def validation_step(self, batch: Any) -> Any:
        if self.validate is not None:
            return without_graph(self.validate, batch)
        return without_graph(pair_output, self.model, batch, self.who)
