"""A training behind one method of a model wrapper: forward(batch, needs_loss, requires_grad)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.loop.styles.own_updates import OwnProcess, pair_output
from assay.engine.metrics.metric import Metric
from assay.engine.model.modules import unwrap
from assay.engine.optim.losses import Losses
from assay.engine.optim.multi_optimizer_step import as_optimizer_step
from assay.engine.optim.optimizer_step_base import OptimizerStepBase


class ModelWrapper:
    """A model with its criterion, needed for a loss only, and optimizer, needed for training only.

    It can be used alone: `forward(batch, needs_loss=True, requires_grad=True)` is a whole training
    step. Under an engine the update is made at the end of the window of micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module | None = None,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.model = model
        self.criterion = criterion
        self.metrics = dict(metrics or {})
        self.backward = (
            as_optimizer_step(optimizer) if backward is None and optimizer is not None else backward
        )
        self.steps = 0
        self.is_driven = False

    @property
    def bare(self) -> nn.Module:
        """The model without what torch has put around it."""
        return unwrap(self.model)

    def forward(
        self, batch: Any, needs_loss: bool = False, requires_grad: bool = False
    ) -> dict[str, Any]:
        """Return the model's output by name.

        With `needs_loss` the output has `loss`, a float. With `requires_grad` the weights are
        trained on it. InputError for `requires_grad` without `needs_loss`.
        """
        if requires_grad and not needs_loss:
            raise InputError(
                "requires_grad without needs_loss: there is nothing to learn from.",
                fix="Ask for both.",
            )
        with torch.set_grad_enabled(requires_grad):
            outputs = pair_output(self.model, batch, type(self).__name__)
            loss = self.loss(outputs) if needs_loss else None
        if requires_grad:
            self._learn(loss)
        outputs = {
            name: value.detach() if hasattr(value, "detach") else value
            for name, value in outputs.items()
        }
        return outputs if loss is None else {**outputs, "loss": float(loss.detach())}

    __call__ = forward

    def loss(self, outputs: Mapping[str, Any]) -> torch.Tensor:
        """The loss of what the model gave."""
        if self.criterion is None:
            fix = "Give it one; without a loss the model can still be asked for its output."
            raise InputError(
                f"{type(self).__name__} has no criterion to compute a loss with.", fix=fix
            )
        return self.criterion(outputs["pred"], outputs["target"])  # type: ignore[no-any-return]

    def _learn(self, loss: Any) -> None:
        if self.backward is None:
            raise InputError(
                f"{type(self).__name__} has no optimizer to learn with.", fix="Give it one."
            )
        if not self.is_driven:
            self.backward.begin(None)
        self.backward(loss)
        if not self.is_driven:
            self.backward.update(self.steps)
            self.steps += 1


class FlaggedForward(OwnProcess):
    """Anything with `forward(batch, needs_loss, requires_grad)`, which gives a mapping.

    One that has no `backward` of its own is given that of the engine, to call it as
    `self.backward(loss)`.
    """

    def __init__(
        self,
        wrapper: Any,
        model: nn.Module,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.wrapper = wrapper
        self.who = f"{type(wrapper).__name__}.forward"
        super().__init__(model, backward=backward, metrics=metrics)
        if getattr(wrapper, "backward", None) is None:
            wrapper.backward = backward
        if hasattr(wrapper, "is_driven"):
            wrapper.is_driven = True
        self._can_judge = getattr(wrapper, "criterion", self) is not None

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        return self.read_result(self.wrapper.forward(batch, needs_loss=True, requires_grad=True))

    def _differentiate(self, loss: Losses | None) -> None:
        """Do nothing: a model that is asked for gradients has made them by `backward`."""

    def validation_step(self, batch: Any) -> Any:
        return self.wrapper.forward(batch, needs_loss=self._can_judge, requires_grad=False)
