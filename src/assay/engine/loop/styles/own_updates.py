"""User code that may update the weights itself.

A step is settled by who made its update, which says what is left for the engine to do.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.engine.loop.process import Process
from assay.engine.metrics.metric import Metric
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.losses import Losses, detach_loss
from assay.engine.optim.multi_optimizer_step import MultiOptimizerStep, as_optimizer_step
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.optimizer_step_base import OptimizerStepBase
from assay.engine.optim.scaled_optimizer_step import ScaledOptimizerStep


class OwnUpdates:
    """Counter of optimizer steps, which tells updates by the user's code from the engine's."""

    def __init__(self, backward: OptimizerStepBase, who: str) -> None:
        self.backward = backward
        self.who = who
        self.made = 0
        optimizers = backward.optimizers.values()
        self._hooks = [optimizer.register_step_post_hook(self._count) for optimizer in optimizers]
        self.parameters = [
            p
            for optimizer in optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        ]

    def _count(self, *_: Any) -> None:
        self.made += 1

    def settle(self, step: int, micro_batches: int, loss: Any) -> None:
        """Settle an update that user code has made: advance the schedule, set the loss.

        InputError where the settings ask for what only the engine's own update does.
        """
        self.made, backward = 0, self.backward
        self._check(micro_batches)
        backward.deferred = None
        if (
            isinstance(backward, OptimizerStep)
            and backward.flag is not None
            and not backward.ranks.is_distributed  # each has a loss of its own
            and _is_on_device(loss)
        ):
            backward.deferred = backward.deferred_loss(loss, self._blame)
        else:
            backward.loss = _number(loss)
            backward.has_loss = loss is not None
            is_bad = backward.has_loss and not math.isfinite(backward.loss)
            if is_bad and backward.non_finite == "stop":
                raise self._blame(step + 1)
        for part in self._parts():
            part.rates = part.rate.read()
            if part.rate.schedule is not None:  # else the code may set the rate as well
                part.rate.set(step + 1)
        if isinstance(backward, MultiOptimizerStep):
            backward.go_to(step + 1)

    def _blame(self, step: int) -> NonFiniteError:
        leave = (
            "leave the update to the engine: it is made only when loss and gradients are finite."
        )
        return NonFiniteError(
            f"The loss is {self.backward.loss} at step {step}, and {self.who} updated the"
            " weights with it.",
            fix=leave.capitalize(),
            mend=f"Mend or leave out that sample; or {leave}",
        )

    def check_given(self, given: int, micro_batches: int) -> None:
        """Raise InputError if the engine is to update from gradients it was not given as needed."""
        if given == micro_batches:
            return
        fix = (
            "Call engine.backward(loss) for every batch; or loss.backward() and"
            " optimizer.step() of your own."
        )
        if given or any(parameter.grad is not None for parameter in self.parameters):
            raise InputError(f"{self.who} made gradients, and no update with them.", fix=fix)
        raise InputError(f"{self.who} learned nothing from a batch: it made no update.", fix=fix)

    def _check(self, micro_batches: int) -> None:
        fix = (
            f"Leave backward and update to the engine: in {self.who} call backward(loss) of it,"
            " and no step()."
        )
        if micro_batches > 1:
            what = (
                f"{self.who} updates the weights for each batch, but {micro_batches} are one"
                " step: accumulate."
            )
            raise InputError(what, fix=fix)
        idle = {
            "clip_norm": any(part.clip_norm is not None for part in self._parts()),
            'non_finite = "skip"': any(part.non_finite == "skip" for part in self._parts()),
        }
        for setting, is_set in idle.items():
            if is_set:
                what = f"{self.who} updates the weights itself, so {setting} would do nothing."
                raise InputError(what, fix=fix)
        if any(isinstance(part, ScaledOptimizerStep) for part in self._parts()):
            raise InputError(
                f"{self.who} updates the weights itself, without the loss scale that fp16 needs.",
                fix=fix,
            )

    def _parts(self) -> list[OptimizerStep]:
        """One for each optimizer, where they are ours."""
        parts = (
            self.backward.by_name.values()
            if isinstance(self.backward, MultiOptimizerStep)
            else [self.backward]
        )
        return [part for part in parts if isinstance(part, OptimizerStep)]

    def stop(self) -> None:
        """Count no more."""
        for hook in self._hooks:
            hook.remove()


class OwnProcess(Process):
    """Process around code that may call the engine's `backward(loss)`, update itself, or neither.

    In the last case the loss that it returns is differentiated here, and the engine makes the
    update.
    """

    who: str
    has_updated = False
    """Whether its code has made an update itself."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        self.model = model
        self.metrics = dict(metrics or {})
        if backward is None and optimizer is not None:
            backward = as_optimizer_step(optimizer)
        if backward is not None:
            self.backward = backward
            self._updates = OwnUpdates(backward, self.who)
        self._given = self._micro_batches = 0
        self._is_known = False
        self._loss: Any = None

    @abstractmethod
    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        """Return the loss, None if it is unknown, and the output; the weights may have changed."""

    def differentiate(self, loss: Losses) -> None:
        """Add gradients, weighted as the window needs them; user code calls it `backward(loss)`."""
        self._given += 1
        self.backward(loss)

    def training_step(self, batch: Any) -> Any:
        given = self._given
        loss, output = self.forward_step(batch)
        self._micro_batches += 1
        self._loss = loss
        if not self._updates.made and self._given == given:
            self._differentiate(loss)
        return output

    def update(self, step: int) -> bool:
        made = self._updates.made
        micro_batches = self._micro_batches
        loss = self._loss
        self._given = self._micro_batches = 0
        self._loss = None
        if made:
            self.has_updated = True
            self._updates.settle(step, micro_batches, loss)
            return True
        try:
            return super().update(step)
        finally:
            self._updates.made = 0

    def _differentiate(self, loss: Losses | None) -> None:
        if not self._is_known and any(
            parameter.grad is not None for parameter in self._updates.parameters
        ):
            raise InputError(
                f"{self.who} called loss.backward(), and made no step with it.",
                fix="Call optimizer.step() too; or leave both to the engine, and return the loss.",
            )
        self._is_known = True
        if loss is None:
            raise InputError(
                f"{self.who} gave no loss, called no backward(loss), and made no step of the"
                " optimizer.",
                fix="Return the loss, or update the weights with the optimizer of this process.",
            )
        self.backward(loss)

    def read_result(self, returned: Any) -> tuple[Losses | None, Any]:
        """Return loss and output of a user function's result; log other numbers of a mapping."""
        if isinstance(returned, Mapping):
            for name, value in returned.items():
                if name != "loss" and _is_number(value):
                    self.log(name, value)
            return returned.get("loss"), {
                name: detach_loss(value) for name, value in returned.items()
            }
        if (
            isinstance(returned, tuple)
            and len(returned) == 2
            and not isinstance(returned[1], Tensor | float | int)
        ):
            return returned
        return returned, {"loss": detach_loss(returned)}


def pair_output(model: nn.Module, batch: Any, who: str) -> dict[str, Any]:
    """Return `pred` and `target` of a batch (input, target): the default where no code evaluates.

    InputError for a batch that is no pair.
    """
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise InputError(
            f"How {who} evaluates a batch that is no pair (input, target) is unknown.",
            fix="Give it a function that returns what the metrics need, as"
            " {'pred': ..., 'target': ...}.",
        )
    return {"pred": model(batch[0]), "target": batch[1]}


def without_graph(call: Any, *given: Any) -> Any:
    """Call a function under `no_grad`."""
    with torch.no_grad():
        return call(*given)


def _number(loss: Any) -> float:
    if loss is None:
        return math.nan
    if isinstance(loss, tuple):
        total, weight = detach_loss(loss)
        return float(total) if weight is None else float(total) / float(weight)
    return float(detach_loss(loss))


def _is_on_device(loss: Any) -> bool:
    return any(isinstance(part, Tensor) for part in (loss if isinstance(loss, tuple) else (loss,)))


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        # (1,) may be the output for a batch of one sample.
        return value.dim() == 0 and value.is_floating_point()
    return isinstance(value, float)
