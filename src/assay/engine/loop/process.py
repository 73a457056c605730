"""Process: forward, loss and output of one batch. The engine owns the order of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError, did_you_mean
from assay.engine.data.batches import size_of
from assay.engine.data.collate import fields_of
from assay.engine.data.instance import Instance
from assay.engine.loop.state import State
from assay.engine.metrics.logged_means import LoggedMeans
from assay.engine.metrics.metric import Metric
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.seed import HOOK, key, seed_all, undisturbed
from assay.engine.numerics.sparse import entries
from assay.engine.optim.criterion_misfit import misfit
from assay.engine.optim.losses import Losses, detached
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.optimizer_step_base import OptimizerStepBase
from assay.engine.optim.reductions import Reduction, Reductions

Model = nn.Module


class Process(ABC):
    """Training step that you write: `forward_step` is required, every other method can be replaced.

    Training calls `train()`, then for each window of micro-batches `training_step(batch)` for each
    and `update(step)` once. Evaluation calls `eval()`, then `validation_step(batch)`; where there
    is no loss, `inference_step(batch)`. No base class is needed for that: any object with these
    methods will do.
    """

    model: nn.Module
    backward: OptimizerStepBase
    metrics: Mapping[str, Metric]
    batch_hook: Callable[[Any], Any] | None = None
    """Function that returns the batch to train on in place of one, such as mixup.

    Called once for each micro-batch. What it draws from torch, numpy and `random` is keyed by the
    micro-step, and changes no other draw.
    """
    logged: LoggedMeans | None = None
    """Receiver of `log`: the means of the training step, or of the split being evaluated."""

    @abstractmethod
    def forward_step(self, batch: Any) -> tuple[Losses, Any]:
        """The loss and the output (a mapping; `loss` in it is for logs).

        The loss is a mean, a (sum, weight) pair, or a mapping of several of them by name.
        """

    def training_step(self, batch: Any) -> Any:
        """Forward and backward of one micro-batch; no update."""
        if self.batch_hook is not None:
            batch = self._hooked(batch)
        loss, output = self._forward(batch)
        self.backward(loss)
        return output

    def validation_step(self, batch: Any) -> Any:
        """Forward only; what comes back carries no graph."""
        with torch.no_grad():
            _, output = self._forward(batch)
        return output

    def inference_step(self, batch: Any) -> Any:
        """The output for a batch that need have no target; no loss."""
        raise InputError(
            f"{type(self).__name__} cannot infer: it has no inference_step.",
            fix='Write `def inference_step(self, batch): return {"pred": self.model(batch)}`.',
        )

    def update(self, step: int) -> bool:
        """One optimizer update after `step` completed ones; False when it was left out."""
        try:
            return self.backward.update(step)
        except NonFiniteError as error:
            raise NonFiniteError(
                error.what, where=_bad_gradients(self.model), fix=error.fix
            ) from None

    def train(self, mode: bool = True) -> None:
        self.model.train(mode)

    def eval(self) -> None:
        self.train(False)

    def _hooked(self, batch: Any) -> Any:
        assert self.batch_hook is not None
        # The engine has keyed torch by the micro-step.
        own = key(torch.default_generator.initial_seed() % 2**63, HOOK)
        with undisturbed():
            seed_all(own)
            batch = self.batch_hook(batch)
        if batch is None:
            raise InputError(
                "The batch_hook returned nothing.", fix="Return the batch, changed or as it was."
            )
        return batch

    def log(self, name: str, value: Tensor | float, weight: Tensor | float | None = None) -> None:
        """Record the weighted mean of `value` over the step as `train/NAME`, over an evaluated
        split as `valid/NAME`.

        The weight is the number of samples in the batch, if none is given. No device waits for
        this.
        """
        if self.logged is not None:
            self.logged.add(name, value, weight)

    def attach(self, state: State, device: torch.device, logged: LoggedMeans) -> None:
        """An engine begins to run this process on `device`; `state` says where it is."""
        self.logged = logged

    def _forward(self, batch: Any) -> tuple[Losses, Any]:
        returned: Any = self.forward_step(batch)  # users write it
        if isinstance(returned, tuple) and len(returned) == 2:
            return returned
        raise InputError(
            f"forward_step returned {_shape_of(returned)}; it must return the pair (loss, output).",
            where=f"{type(self).__name__}.forward_step",
            fix='Write `return loss, {"pred": pred, "target": target, "loss": loss.detach()}`.',
        )


Part = str | int
"""The name of a field of a batch, or its place."""


class Supervised(Process):
    """Training step of a model and a criterion, for batches of (input, target).

    `input` and `target` name the parts of other batches: keys of a mapping, fields of a dataclass,
    a namespace, a named tuple or an `Instance`, places of a tuple. Several make several arguments:
    `model(*inputs)`, and `criterion(pred, *targets)`.

    The output is a mapping of `pred`, `target` and `loss`, which `metrics` read in evaluation.
    Without a criterion (None) it can be evaluated, and the output has no loss. Inference takes
    inputs, with or without a target.

    What a mean of torch was divided by is found out (see `Reductions`), so that micro-batches,
    ranks and batches of an evaluation count as much as in one large batch; a sum stays a sum.
    `reduction` says what a criterion gives of which that cannot be told: the "mean" over the
    samples of a batch, or a "sum".
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module | None,
        optimizer: Optimizer | None = None,
        *,
        backward: OptimizerStepBase | None = None,
        metrics: Mapping[str, Metric] | None = None,
        batch_hook: Callable[[Any], Any] | None = None,
        input: Part | Sequence[Part] | None = None,
        target: Part | Sequence[Part] | None = None,
        reduction: Reduction | None = None,
    ) -> None:
        self.model = model
        self.criterion: Any = criterion
        self.metrics = dict(metrics or {})
        self.batch_hook = batch_hook
        self.reduction = reduction
        if (input is None) != (target is None) and criterion is not None:
            raise InputError(
                "Supervised was told which part of a batch is the"
                f" {'target' if input is None else 'input'} only.",
                fix='Give both: Supervised(..., input="image", target="label").',
            )
        self._input = None if input is None else _several(input)
        self._target = _several(target if target is not None else ())
        self._has_one_target = target is None or isinstance(target, str | int)
        if backward is not None:
            self.backward = backward
        elif optimizer is not None:
            self.backward = OptimizerStep(optimizer)

    def forward_step(self, batch: Any) -> tuple[Losses, Any]:
        if self._input is None:
            # A tuple of types: a union would be made anew at each step.
            if not isinstance(batch, (list, tuple)) or len(batch) != 2:
                raise _not_taken(batch)
            inputs, target = batch
            pred = self.model(inputs)
        else:
            inputs, target = self._parts(batch)
            pred = self.model(*inputs)
        if not isinstance(pred, Tensor):
            raise self._no_tensor(pred)
        is_training = torch.is_grad_enabled()
        if self.criterion is None:
            if is_training:
                raise InputError(
                    "There is no criterion, and nothing to train by.",
                    fix="Give Supervised a criterion.",
                )
            return None, {"pred": pred, "target": target}  # type: ignore[return-value]
        if is_training and not self.backward.needs_weights:
            loss = self._loss(pred, target)
            return loss, {"pred": pred.detach(), "target": target, "loss": detached(loss)}
        with Reductions(size_of(batch)) as watch:
            mean = self._loss(pred, target)
        loss = watch.weighed(mean, self.criterion, self.reduction)
        reported = watch.reported(mean, loss)
        return loss, {"pred": pred.detach(), "target": target, **reported}

    def inference_step(self, batch: Any) -> Any:
        if self._input is not None:
            inputs = [_part(batch, name) for name in self._input] if _has_parts(batch) else [batch]
        else:
            inputs = [
                batch[0] if isinstance(batch, list | tuple) and len(batch) in (1, 2) else batch
            ]
        with torch.no_grad():
            pred = self.model(*inputs)
        if not isinstance(pred, Tensor):
            raise self._no_tensor(pred)
        return {"pred": pred}

    def _parts(self, batch: Any) -> tuple[list[Any], Any]:
        """Return the inputs and the target, or the targets, of a batch whose parts have names."""
        assert self._input is not None
        targets = [_part(batch, name) for name in self._target]
        inputs = [_part(batch, name) for name in self._input]
        return inputs, targets[0] if targets and self._has_one_target else tuple(targets)

    def _loss(self, pred: Tensor, target: Any) -> Any:
        """Return the loss of the criterion; CriterionError or InputError where it does not fit."""
        try:
            if self._has_one_target:
                found = self.criterion(pred, target)
            else:
                found = self.criterion(pred, *target)
        except Exception as error:
            if not self._has_one_target and len(target) != 1:
                raise
            one = target if self._has_one_target else target[0]
            blamed = misfit(error, self.criterion, pred, one)
            if blamed is None:
                raise
            raise blamed from error
        # AdaptiveLogSoftmaxWithLoss returns a named tuple.
        return found if isinstance(found, Tensor) else getattr(found, "loss", found)

    def _no_tensor(self, pred: object) -> InputError:
        return InputError(
            f"Supervised takes a model that returns a tensor; {type(self.model).__name__} gave"
            f" {_shape_of(pred)}.",
            fix="Return the tensor alone from forward, or write your own Process.",
        )


def _several(names: Part | Sequence[Part]) -> tuple[Part, ...]:
    return (names,) if isinstance(names, str | int) else tuple(names)


def _has_parts(batch: Any) -> bool:
    return isinstance(batch, Mapping | list | tuple | Instance) or fields_of(batch) is not None


def _part(batch: Any, name: Part) -> Any:
    """Return a part of a batch; InputError names those that there are."""
    try:
        if isinstance(batch, Mapping | Instance) or (
            isinstance(name, int) and isinstance(batch, list | tuple)
        ):
            return batch[name]  # type: ignore[index]
        return getattr(batch, str(name))
    except (KeyError, IndexError, AttributeError):
        raise InputError(
            f"A batch has no {name!r}; it is {_shape_of(batch)}.",
            where="[process] input, target",
            fix=did_you_mean(str(name), _names_in(batch)) or "Name a part that it has.",
        ) from None


def _names_in(batch: Any) -> list[str]:
    if isinstance(batch, Mapping | Instance):
        return [str(name) for name in batch.keys()]  # noqa: SIM118 - an Instance cannot be iterated
    return list(getattr(batch, "_fields", None) or fields_of(batch) or ())


def _not_taken(batch: Any) -> InputError:
    fix = "Return such pairs from the data set, or write your own Process."
    names = [f'"{name}"' for name in _names_in(batch)]
    if not names and isinstance(batch, list | tuple):
        names = [str(place) for place in range(len(batch))]
    if len(names) > 1:
        fix = (
            f"Say which part is which, as in input = {names[0]}, target = {names[1]}, under"
            " [process] or as arguments"
            " of Supervised; or write your own Process."
        )
    return InputError(
        f"Supervised takes batches of (input, target); this one is {_shape_of(batch)}.", fix=fix
    )


def _bad_gradients(model: nn.Module) -> str:
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    bad = [
        name
        for name, grad in grads.items()
        if grad is not None and not entries(local_tensor(grad)).isfinite().all()
    ]
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return f"gradients that are not finite: {', '.join(bad[:3])}{more}" if bad else ""


def _shape_of(batch: Any) -> str:
    names = _names_in(batch)
    if isinstance(batch, Mapping):
        return f"a mapping of {', '.join(names)}" if names else "an empty mapping"
    if isinstance(batch, list | tuple) and not names:
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}" + (f" of {', '.join(names)}" if names else "")
