"""Model of alchemy: a wrapper with its loss and its update, and the handler of the update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from inspect import signature
from typing import Any

from torch import nn

from assay.build import instantiate
from assay.compat.alchemy.registrable import Registrable
from assay.compat.alchemy.symbols import sym_tbl
from assay.compat.alchemy.task import AlchemyTask
from assay.core.errors import InputError
from assay.engine import OptimizerStep
from assay.engine.loop.styles.flags import FlaggedForward
from assay.engine.optim.optimizer_step_base import NonFinite, OptimizerStepBase


class NoCriterionError(InputError, AttributeError):
    """A loss was asked of a model whose config has no `criterion_cfg`."""


class AlchemyModel(Registrable, nn.Module):
    """Wrapper of a model, whose class sets `self._model` and writes `forward`.

    `criterion` is made of `criterion_cfg`, which a config of an inference leaves out. `backward` is
    the handler of the run, to call as `self.backward(loss)`; `backward_cfg` of [model] is
    [backward] here.
    """

    def __init__(self, criterion_cfg: Any = None, backward_cfg: Any = None, **given: Any) -> None:
        super().__init__()
        self.backward: Any = None
        if criterion_cfg is not None:
            is_config = isinstance(criterion_cfg, Mapping)
            self.criterion = instantiate(criterion_cfg) if is_config else criterion_cfg

    @property
    def model(self) -> nn.Module:
        """Model that is wrapped."""
        model = self._modules.get("_model", self._modules.get("model"))
        if model is None:
            raise InputError(
                f"{type(self).__name__} has no model.", fix="Set self._model in its __init__."
            )
        return model

    @property
    def backward_handler(self) -> Any:
        """Handler of the run: `backward` by another name."""
        return self.backward

    @abstractmethod
    def forward(
        self, batch: Any, needs_loss: bool, requires_grad: bool, **given: Any
    ) -> dict[str, Any]:
        """Return the output of the model; with `needs_loss` also `loss`, a float.

        With `requires_grad` it calls `self.backward(loss)`.
        """

    def __getattr__(self, name: str) -> Any:
        if name == "criterion" and name not in self._modules:
            raise NoCriterionError(
                f"{type(self).__name__} has no criterion to compute a loss with.",
                fix="Give [model] a criterion_cfg.",
            )
        return super().__getattr__(name)


class BackwardHandler(Registrable, OptimizerStep):
    """Handler of zero_grad, backward, step of the optimizer, and step of the learning rate.

    It is the update of assay: gradients are added up over `period` batches, named losses are told
    apart, and the engine makes the step. A class that writes `__call__(loss)` may do all four.
    """

    def __init__(
        self,
        optimizer: Any = None,
        *,
        schedule: Any = None,
        clip_norm: float | None = None,
        non_finite: NonFinite = "stop",
        weights: Mapping[str, float] | None = None,
        **given: Any,
    ) -> None:
        table = sym_tbl()
        super().__init__(
            table.get("optimizer") if optimizer is None else optimizer,
            schedule=table.try_get("schedule") if schedule is None else schedule,
            clip_norm=clip_norm,
            non_finite=non_finite,
            weights=weights,
        )


class DefaultBackwardHandler(BackwardHandler):
    """Handler that does what assay does."""


class AlchemyProcess(FlaggedForward):
    """Process of an `AlchemyModel`, through `step` and `eval_step` of a task that writes them."""

    def forward_step(self, batch: Any) -> tuple[Any, Any]:
        task = _task_with("step")
        return super().forward_step(batch) if task is None else self.read_result(task.step(batch))

    def validation_step(self, batch: Any) -> Any:
        task = _task_with("eval_step")
        if task is not None:
            return task.eval_step(batch)
        try:
            return super().validation_step(batch)
        except NoCriterionError:
            self._can_judge = False
            return super().validation_step(batch)


def make_process(model: nn.Module, backward: OptimizerStepBase | None = None) -> AlchemyProcess:
    """Return the process of a model with `forward(batch, needs_loss, requires_grad)`."""
    if not {"needs_loss", "requires_grad"} <= signature(model.forward).parameters.keys():
        raise InputError(
            f"{type(model).__name__} is no model of alchemy: its forward does not take"
            " `needs_loss` and `requires_grad`.",
            fix="Derive it from AlchemyModel, or say in [process] how it is trained.",
        )
    return AlchemyProcess(model, model, backward=backward)


def _task_with(method: str) -> Any:
    """Return the task of the run if its class writes this method, else None."""
    task = sym_tbl().try_get("task")
    if not isinstance(task, AlchemyTask):
        return None
    is_own = getattr(type(task), method) is not getattr(AlchemyTask, method)
    return task if is_own else None
