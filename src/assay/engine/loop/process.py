"""Process: forward, loss and output of one batch. The engine owns the order of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError
from assay.core.formatting import name_some
from assay.engine.data.instance import Part, describe_parts, has_parts, part_names, part_of
from assay.engine.loop.state import State
from assay.engine.metrics.means import LoggedMeans
from assay.engine.metrics.metric import Metric
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.seed import HOOK, restore_generators, seed_all, stream_key
from assay.engine.numerics.sparse import entries
from assay.engine.numerics.structures import map_values
from assay.engine.optim.criterion import (
    PREDICTION_NAMES,
    TARGET_NAMES,
    CriterionCall,
    criterion_call,
    misfit,
    refuse_crossed,
)
from assay.engine.optim.denominators import (
    Reduction,
    display_name,
    report_loss,
    unknown_denominator,
    weigh_loss,
)
from assay.engine.optim.losses import Losses, detach_loss
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.optimizer_step_base import OptimizerStepBase

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
    keeps_output: bool = True
    """False where nobody reads the output of a training step: the backward pass has its memory."""
    unweighed: str | None = ""
    """Whose loss counted as a mean over the samples in an evaluation, for want of a weight; None
    once that was said."""
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
            batch = self._call_batch_hook(batch)
        loss, output = self._forward(batch)
        if not self.keeps_output:
            output = None
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

    def preprocess(self, *inputs: Any) -> Any:
        """The argument of the model for the inputs of a batch, a tuple for several arguments.

        One that is written leaves with an exported model; own steps have to call it.
        """
        return inputs

    def postprocess(self, output: Any) -> Any:
        """The result of inference for an output of the model.

        One that is written leaves with an exported model; an own `inference_step` has to call it.
        """
        return output

    def update(self, step: int) -> bool:
        """One optimizer update after `step` completed ones; False when it was left out."""
        try:
            return self.backward.update(step)
        except NonFiniteError as error:
            raise NonFiniteError(
                error.what, where=_bad_gradients(self.model), fix=error.fix
            ) from None

    def train(self, mode: bool = True) -> None:
        """Put the model into training mode, or into eval mode."""
        self.model.train(mode)

    def eval(self) -> None:
        """Put the model into eval mode. An evaluation has put all modules there before."""
        self.train(False)

    def _call_batch_hook(self, batch: Any) -> Any:
        assert self.batch_hook is not None
        # The engine has keyed torch by the micro-step.
        own = stream_key(torch.default_generator.initial_seed() % 2**63, HOOK)
        with restore_generators():
            seed_all(own)
            batch = self.batch_hook(batch)
        if batch is None:
            raise InputError(
                "The batch_hook returned nothing.", fix="Return the batch, changed or as it was."
            )
        return batch

    def log(self, name: str, value: Tensor | float, weight: Tensor | float | None = None) -> None:
        """Record the weighted mean of `value` over the step as `train/NAME`.

        Over an evaluated split it is recorded as `SPLIT/NAME`, such as `valid/NAME`. The default
        weight is the number of samples in the batch. No device waits for this.
        """
        if self.logged is not None:
            self.logged.add(name, value, weight)

    def _note_unweighed(self, who: object) -> None:
        """Note that the loss of `who` has no weight, unless it was said before."""
        if self.unweighed is not None:
            self.unweighed = display_name(who)

    def attach(self, state: State, device: torch.device, logged: LoggedMeans) -> None:
        """An engine begins to run this process on `device`; `state` says where it is."""
        self.logged = logged

    def _forward(self, batch: Any) -> tuple[Losses, Any]:
        returned: Any = self.forward_step(batch)  # users write it
        if isinstance(returned, tuple) and len(returned) == 2:
            return returned
        raise InputError(
            f"forward_step returned {describe_parts(returned)}; it must return the pair (loss,"
            " output).",
            where=f"{type(self).__name__}.forward_step",
            fix='Write `return loss, {"pred": pred, "target": target, "loss": loss.detach()}`.',
        )


class Supervised(Process):
    """Training step of a model and a criterion, for batches of (input, target).

    `input` and `target` name the parts of other batches: keys of a mapping, fields of a dataclass,
    a namespace, a named tuple or an `Instance`, places of a tuple. Several make several arguments:
    `model(*inputs)`, and `criterion(pred, *targets)`.

    A criterion of torch is called by position. Any other gets the named fields of the batch and of
    the model's output that its parameters are called (see `CriterionCall`); `criterion_args` says
    which, as in `{"weight": "sample_weight"}`. Then `target` may be left out, and the model may
    return a mapping or a dataclass.

    The output is a mapping of `pred`, `target` and `loss`, which `metrics` read in evaluation, with
    the named fields of the model's output. Without a criterion (None) it can be evaluated, and the
    output has no loss. Inference takes inputs, with or without a target.

    What a criterion of torch divides its mean by is known by its class, so that micro-batches,
    ranks and batches of an evaluation count as much as in one large batch; a sum stays a sum.
    Any other returns the pair (sum, weight), or `reduction` says what it gives: the "mean" over the
    samples of a batch, or a "sum". An attribute `reduction` of the criterion says the same.
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
        criterion_args: Mapping[str, str] | None = None,
        reduction: Reduction | None = None,
    ) -> None:
        _check_kinds(model, criterion, optimizer)
        self.model = model
        self.criterion: Any = criterion
        self.metrics = dict(metrics or {})
        self.batch_hook = batch_hook
        self.reduction = reduction
        self._input = None if input is None else _several(input)
        self._target = _several(target if target is not None else ())
        self._has_one_target = target is None or isinstance(target, str | int)
        self._criterion_args = dict(criterion_args or {})
        self._call = self._new_call()
        is_half = input is None or self._call is None  # an argument by name may be the target
        if (input is None) != (target is None) and criterion is not None and is_half:
            raise InputError(
                "Supervised was told which part of a batch is the"
                f" {'target' if input is None else 'input'} only.",
                fix='Give both: Supervised(..., input="image", target="label").',
            )
        if backward is not None:
            self.backward = backward
        elif optimizer is not None:
            self.backward = OptimizerStep(optimizer)

    def forward_step(self, batch: Any) -> tuple[Losses, Any]:
        if self._input is None:
            if not isinstance(batch, list | tuple) or len(batch) != 2:
                raise _not_taken(batch)
            inputs, target = [batch[0]], batch[1]
        else:
            inputs, target = self._parts(batch)
        pred = self.model(*as_arguments(self.preprocess(*inputs)))
        if not isinstance(pred, Tensor) and not self._takes_fields(pred):
            raise self._no_tensor(pred)
        is_training = torch.is_grad_enabled()
        if self.criterion is None:
            if is_training:
                raise InputError(
                    "There is no criterion, and nothing to train by.",
                    fix="Give Supervised a criterion.",
                )
            return None, self._output(pred, target)  # type: ignore[return-value]
        loss, args, named = self._loss(pred, target, batch)
        output = self._output(pred, target)
        if is_training and not self.backward.needs_weights:
            return loss, {**output, "loss": detach_loss(loss)}
        weighted = weigh_loss(loss, self.criterion, args, named, self.reduction)
        if weighted is None:
            if is_training:
                raise unknown_denominator(self.criterion)
            self._note_unweighed(self.criterion)
            weighted = loss
        return weighted, {**output, **report_loss(loss, weighted)}

    def inference_step(self, batch: Any) -> Any:
        if self._input is not None:
            inputs = [part_of(batch, name) for name in self._input] if has_parts(batch) else [batch]
        else:
            inputs = [
                batch[0] if isinstance(batch, list | tuple) and len(batch) in (1, 2) else batch
            ]
        with torch.no_grad():
            pred = self.postprocess(self.model(*as_arguments(self.preprocess(*inputs))))
        if not isinstance(pred, Tensor) and not self._takes_fields(pred):
            raise self._no_tensor(pred)
        return outputs_by_name(pred)

    def _parts(self, batch: Any) -> tuple[list[Any], Any]:
        """Return the inputs and the target, or the targets, of a batch whose parts have names."""
        assert self._input is not None
        targets = [part_of(batch, name) for name in self._target]
        inputs = [part_of(batch, name) for name in self._input]
        if self._has_one_target and not targets:
            # It was left out: the criterion has its arguments by name, metrics want a target.
            usual = (name for name in part_names(batch) if name in TARGET_NAMES)
            targets = [part_of(batch, name) for name in usual]
        return inputs, targets[0] if targets and self._has_one_target else tuple(targets)

    def _new_call(self) -> CriterionCall | None:
        """Return how the criterion is called; None: by position."""
        return criterion_call(
            self.criterion, self._criterion_args, inputs=self._input or (), targets=self._target
        )

    def _takes_fields(self, pred: Any) -> bool:
        """Return True where a model may return this in place of a tensor."""
        return bool(part_names(pred)) and (self._call is not None or self.criterion is None)

    def _output(self, pred: Any, target: Any) -> dict[str, Any]:
        if isinstance(pred, Tensor):
            return {"pred": pred.detach(), "target": target}
        return {**outputs_by_name(map_values(pred, Tensor.detach)), "target": target}

    def _targets(self, target: Any) -> Sequence[Any]:
        """Return the targets for the criterion, one after another; none if they have no name."""
        if self._input is not None and not self._target:
            return ()
        return (target,) if self._has_one_target else target

    def _loss(
        self, pred: Any, target: Any, batch: Any
    ) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """Return the loss of the criterion, and the arguments that it was called with.

        CriterionError or InputError where they do not fit.
        """
        targets = self._targets(target)
        call = self._call
        if call is not None and call.criterion is not self.criterion:  # replaced meanwhile
            call = self._call = self._new_call()
        if len(targets) == 1 and isinstance(pred, Tensor):
            refuse_crossed(self.criterion, pred, targets[0])
        try:
            args, named = (
                ([pred, *targets], {}) if call is None else call.bind(pred, targets, batch)
            )
            found = self.criterion(*args, **named)
        except Exception as error:
            if len(targets) != 1 or not isinstance(pred, Tensor):
                raise
            blamed = misfit(error, self.criterion, pred, targets[0])
            if blamed is None:
                raise
            raise blamed from error
        # AdaptiveLogSoftmaxWithLoss returns a named tuple.
        loss = found if isinstance(found, Tensor) else getattr(found, "loss", found)
        return loss, args, named

    def _no_tensor(self, pred: object) -> InputError:
        if pred is None:
            return InputError(
                f"The forward of {type(self.model).__name__} returned None.",
                fix="End it with `return` and the prediction.",
            )
        return InputError(
            f"Supervised takes a model that returns a tensor; {type(self.model).__name__} gave"
            f" {describe_parts(pred)}.",
            fix="Return the tensor alone from forward; or named fields, and say which of them the"
            ' criterion takes: criterion_args = { input = "logits", target = "target" }; or write'
            " your own Process.",
        )


def as_arguments(given: Any) -> tuple[Any, ...]:
    """Return what `preprocess` returned as the arguments of the model."""
    return given if isinstance(given, tuple) else (given,)


def outputs_by_name(pred: Any) -> dict[str, Any]:
    """Return what a model gave by name; `pred` is its prediction, if one can be told."""
    if isinstance(pred, Tensor):
        return {"pred": pred}
    fields = {name: part_of(pred, name) for name in part_names(pred)}
    named = [name for name in PREDICTION_NAMES if name in fields]
    tensors = [name for name, value in fields.items() if isinstance(value, Tensor)]
    if found := named or (tensors if len(tensors) == 1 else []):
        return {**fields, "pred": fields[found[0]]}
    return fields


def _check_kinds(model: Any, criterion: Any, optimizer: Any) -> None:
    """Refuse what cannot be a part of Supervised: a class for an object, a name, a number."""
    for name, given in {"model": model, "criterion": criterion, "optimizer": optimizer}.items():
        if isinstance(given, type):
            what = f"The {name} of Supervised is the class {given.__name__}, not an object of it."
            raise InputError(what, fix=f"Write {given.__name__}(...).")
    for name, given in {"model": model, "criterion": criterion}.items():
        if given is not None and not callable(given):
            what = f"The {name} of Supervised cannot be called: it is {given!r:.80}."
            raise InputError(what, fix="Give a module, such as torch.nn.MSELoss().")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise InputError(
            f"The optimizer of Supervised is no optimizer: it is {optimizer!r:.80}.",
            fix="Give one, such as torch.optim.SGD(model.parameters(), lr=0.1).",
        )


def _several(names: Part | Sequence[Part]) -> tuple[Part, ...]:
    return (names,) if isinstance(names, str | int) else tuple(names)


def _not_taken(batch: Any) -> InputError:
    fix = "Return such pairs from the data set, or write your own Process."
    names = [f'"{name}"' for name in part_names(batch)]
    if not names and isinstance(batch, list | tuple):
        names = [str(place) for place in range(len(batch))]
    if len(names) > 1:
        fix = (
            f"Say which part is which, as in input = {names[0]}, target = {names[1]}, under"
            " [process] or as arguments"
            " of Supervised; or write your own Process."
        )
    return InputError(
        f"Supervised takes batches of (input, target); this one is {describe_parts(batch)}.",
        fix=fix,
    )


def _bad_gradients(model: nn.Module) -> str:
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    bad = [
        name
        for name, grad in grads.items()
        if grad is not None and not entries(local_tensor(grad)).isfinite().all()
    ]
    return f"gradients that are not finite: {name_some(bad)}" if bad else ""
