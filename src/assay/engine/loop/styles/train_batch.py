"""Training written as a class with `train_batch`.

Its arguments are (eidx, idx, global_step, batch_data, params, device).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from assay.engine.data.batches import size_of
from assay.engine.loop.state import State
from assay.engine.loop.styles.own_updates import OwnProcess, pair_output, without_graph
from assay.engine.metrics.classes import Accuracy
from assay.engine.metrics.means import LoggedMeans
from assay.engine.metrics.metric import Metric
from assay.engine.optim.losses import LOSS
from assay.engine.optim.optimizer_step_base import OptimizerStepBase


class Average(Protocol):
    """Means over an epoch, as `assay.AvgMeter` keeps them."""

    def update(self, values: Mapping[str, Any], weight: float = 1) -> None: ...
    def reset(self) -> None: ...
    def means(self) -> dict[str, float]: ...


class TrainBatch(OwnProcess):
    """Process of an object whose `train_batch` returns a meter or another mapping with `loss`.

    To leave the update to the engine it calls `self.backward(loss)`, which is put there, or it only
    returns its loss.

    `eidx` counts epochs from 1, `idx` the steps of an epoch and `global_step` those of the run from
    0. Without `eval_batch` of the same arguments, a batch is evaluated as a pair (input, class).
    Every number that `eval_batch` returns is a metric of the split: its mean over the samples.
    """

    def __init__(
        self,
        trainer: Any,
        model: nn.Module,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.trainer = trainer
        self.who = f"{type(trainer).__name__}.train_batch"
        if not metrics and not hasattr(trainer, "eval_batch"):
            metrics = {"acc": Accuracy()}
        super().__init__(model, backward=backward, metrics=metrics)
        self._meter: Any = None
        self.state = State()
        self.device = torch.device("cpu")
        if not hasattr(type(trainer), "backward"):
            trainer.backward = self.differentiate

    def attach(self, state: State, device: torch.device, logged: LoggedMeans) -> None:
        super().attach(state, device, logged)
        self.state, self.device = state, device

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        self._meter = self._call(self.trainer.train_batch, batch)
        return self.read_result(self._meter)

    def training_step(self, batch: Any) -> Any:
        average: Average | None = getattr(self.trainer, "average", None)
        if average is not None and self.state.epoch_step == self._micro_batches == 0:
            average.reset()
        output = super().training_step(batch)
        meter, self._meter = self._meter, None  # it holds the graph of the loss
        if average is not None and isinstance(meter, Mapping):
            average.update(meter, size_of(batch) or 1)
        return output

    def validation_step(self, batch: Any) -> Any:
        own = getattr(self.trainer, "eval_batch", None)
        if own is None:
            return without_graph(
                pair_output, self.model, batch, f"{type(self.trainer).__name__} without eval_batch"
            )
        output = without_graph(self._call, own, batch)
        if isinstance(output, Mapping):
            measured = {LOSS, *self.metrics}
            for name, value in output.items():
                if name not in measured and _is_number(value):
                    self.log(name, value, size_of(batch) or 1)
        return output

    def _call(self, method: Callable[..., Any], batch: Any) -> Any:
        state = self.state
        params = getattr(self.trainer, "params", None)
        return method(state.epoch + 1, state.epoch_step, state.step, batch, params, self.device)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)
